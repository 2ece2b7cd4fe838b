package graph

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// compareEvery is the number of steps after which the weights of the ranks are compared again.
const compareEvery = 100

// agree compares the plan with those of the other ranks.
func (m *Machine) agree() error {
	if m.group == nil {
		return nil
	}
	facts, all := map[string]string{"precision": m.opts.precision.String()}, fnv.New64a()
	for _, v := range m.values {
		if v.kind == fromInput && v.node.Graph() != nil {
			facts["input "+v.node.Name()] = v.arg.Operand.String()
		}
	}
	for _, s := range m.steps {
		if s.phase == updates && m.sharded { // of this rank
			continue
		}
		fmt.Fprintln(all, s.opName(), typesOf(s.in), typesOf(s.out), s.phase)
	}
	facts["plan"] = fmt.Sprintf("%x", all.Sum(nil))
	return m.failGroup(Agree(m.group, facts))
}

// groupError returns the error of the group, nil without one.
func (m *Machine) groupError() error {
	if m.group == nil {
		return nil
	}
	return m.group.Err()
}

// failGroup ends the job if err is not nil, because the other ranks would wait for this one. If the job had failed
// before, it returns the error of that: err is its consequence.
func (m *Machine) failGroup(err error) error {
	g := m.opts.group
	if err == nil || !m.opts.hasGroup || g.Size() == 1 || errors.Is(err, ErrNotFinite) { // all ranks have that norm
		return err
	}
	if first := g.Err(); first != nil {
		return first
	}
	g.Fail(err)
	return err
}

// runMark is the end of a run on the device. The group asks for it from a goroutine of its own.
type runMark struct {
	mu    sync.Mutex
	event Event
	free  bool // the run has ended
}

func (k *runMark) done() (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.event == nil {
		return true, nil
	}
	done, err := k.event.Done()
	k.free = done || err != nil
	return done, err
}

// watchRun lets the group watch the run that has been enqueued, if it has collective steps.
func (m *Machine) watchRun() error {
	if !m.collected {
		return nil
	}
	m.collected = false
	mark := (*runMark)(nil)
	for _, k := range m.marks {
		k.mu.Lock()
		if k.free && mark == nil {
			mark, k.free = k, false
		}
		k.mu.Unlock()
	}
	if mark == nil {
		e, err := m.stream.NewEvent()
		if err != nil {
			return err
		}
		mark = &runMark{event: e}
		m.marks = append(m.marks, mark)
	}
	if err := mark.event.Record(); err != nil {
		return err
	}
	m.group.Watch(fmt.Sprint("run ", m.run), mark.done)
	return nil
}

// closeMarks frees what watchRun has made.
func (m *Machine) closeMarks() error {
	var errs []error
	for _, k := range m.marks {
		k.mu.Lock()
		errs = append(errs, k.event.Close())
		k.event = nil
		k.mu.Unlock()
	}
	m.marks = nil
	return errors.Join(errs...)
}

// compareWeights compares the sums of squares of the weights with those of the other ranks.
func (m *Machine) compareWeights() error {
	sums := spec.NewValue(m.update.squares.arg.Operand).(*tensor.Dense)
	if err := errors.Join(m.stream.Download(sums, m.update.squares.arg), m.stream.Synchronize()); err != nil {
		return err
	}
	if err := m.group.Err(); err != nil {
		return err
	}
	hash := fnv.New64a()
	if err := spec.PointAtValue(&m.cell, sums, m.update.squares.arg.Operand); err != nil {
		return err
	}
	hash.Write(hostBytes(&m.cell))
	all, err := m.group.AllGather("comparison of weights", hash.Sum(nil))
	if err != nil {
		return err
	}
	most, count := 0, 0 // the first rank with the weights that most ranks have
	for rank, x := range all {
		n := 0
		for _, other := range all {
			if bytes.Equal(x, other) {
				n++
			}
		}
		if n > count {
			most, count = rank, n
		}
	}
	if i := slices.IndexFunc(all, func(x []byte) bool { return !bytes.Equal(x, all[most]) }); i >= 0 {
		return fmt.Errorf("rank %d has other weights than rank %d after step %d of this run", i, most, m.updated+1)
	}
	return nil
}
