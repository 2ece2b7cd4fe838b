package graph

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// AsyncReaderDepth is the number of copies that an AsyncReader holds until they are read.
const AsyncReaderDepth = 2

// AsyncReader copies a value to the host while the device goes on. Fetch copies the result of a run, and Next returns
// the copy while a later run is under way. It belongs to the goroutine of its machine.
type AsyncReader struct {
	name          string
	use           *exclusive // of the machine
	machine       *Machine
	arg           spec.Arg
	cell          cpu.Buf                    // points at the copy that is read
	ring          [AsyncReaderDepth]Readback // copy i is in i % depth
	fetched, read atomic.Int64               // number of copies so far
	closed        bool
}

// newAsyncReader returns an AsyncReader with readbacks that newReadback makes.
func newAsyncReader(name string, a spec.Arg, newReadback func(spec.Operand) (Readback, error)) (*AsyncReader, error) {
	if dt := a.Dtype; dt != tensor.Float32 && dt != tensor.Float64 {
		return nil, fmt.Errorf("reader of %s: type %s, want float32 or float64", name, value.TypeName(dt))
	}
	r := &AsyncReader{name: name, arg: a, use: new(exclusive)}
	for i := range r.ring {
		var err error
		if r.ring[i], err = newReadback(a.Operand); err != nil {
			return nil, errors.Join(fmt.Errorf("reader of %s: %w", name, err), r.free())
		}
	}
	return r, nil
}

// AsyncReader returns an AsyncReader of a node of float32 or float64 that is computed and has a value after a run.
// Closing the machine closes it.
func (m *Machine) AsyncReader(n *G.Node) (*AsyncReader, error) {
	if err := m.begin(); err != nil {
		return nil, err
	}
	defer m.use.end()
	v, ok := m.valueByNode[n]
	if !ok || !v.keep || v.kind != fromKernel && v.kind != fromHost {
		return nil, fmt.Errorf("graph: machine: reader of %s: it is not computed, or has no value after a run: see WithKeep", describe(n))
	}
	readback := m.stream.NewReadback
	if v.kind == fromHost {
		readback = func(spec.Operand) (Readback, error) { return &hostReadback{result: &m.state[v.id]}, nil }
	}
	r, err := newAsyncReader(v.name, v.arg, readback)
	if err != nil {
		return nil, fmt.Errorf("graph: machine: %w", err)
	}
	r.machine, r.use = m, &m.use
	m.readers = append(m.readers, r)
	return r, nil
}

var errNoReader = errors.New("graph: reader: make it by Machine.AsyncReader")

// exclusively calls f, unless another call is under way. It puts the name of what is read before an error.
func (r *AsyncReader) exclusively(f func() error) (err error) {
	if r == nil || r.use == nil {
		return errNoReader
	}
	if err = r.use.begin(); err == nil {
		defer r.use.end()
		err = f()
	}
	if err != nil {
		err = fmt.Errorf("graph: reader of %s: %w", r.name, err)
	}
	return err
}

// Fetch enqueues a copy of the value of the last run, which may still be running. At most AsyncReaderDepth copies may
// wait to be read.
func (r *AsyncReader) Fetch() error { return r.exclusively(r.fetch) }

func (r *AsyncReader) fetch() error {
	switch {
	case r.closed:
		return errClosed
	case r.machine != nil && r.machine.run == 0:
		return errors.New("the machine has not run")
	case r.Waiting() == AsyncReaderDepth:
		return fmt.Errorf("%d copies are not read yet", AsyncReaderDepth)
	}
	err := r.ring[r.fetched.Load()%AsyncReaderDepth].Fetch(r.arg)
	if err == nil {
		r.fetched.Add(1)
	}
	return err
}

// Waiting returns the number of copies that Next has not returned yet.
func (r *AsyncReader) Waiting() int {
	if r == nil {
		return 0
	}
	read := r.read.Load() // before fetched, which is never less
	return int(r.fetched.Load() - read)
}

// Next waits for the oldest unread copy and returns the first element of the value. It allocates nothing.
func (r *AsyncReader) Next() (x float64, err error) {
	err = r.exclusively(func() (err error) { x, err = r.next(); return err })
	return x, err
}

func (r *AsyncReader) next() (float64, error) {
	switch {
	case r.closed:
		return 0, errClosed
	case r.Waiting() == 0:
		return 0, errors.New("no copy waits to be read: call Fetch first")
	}
	v, err := r.ring[r.read.Load()%AsyncReaderDepth].Value()
	r.read.Add(1)
	if err == nil {
		err = r.machine.groupError() // it has ended the work early
	}
	if err == nil {
		err = spec.PointAtValue(&r.cell, v, r.arg.Operand)
	}
	switch {
	case err != nil:
		return 0, err
	case r.arg.Dtype == tensor.Float32:
		return float64(cpu.Slice[float32](&r.cell)[0]), nil
	}
	return cpu.Slice[float64](&r.cell)[0], nil
}

// hostReadback copies the result of an op on the host.
type hostReadback struct {
	result *state
	value  G.Value
}

func (r *hostReadback) Fetch(spec.Arg) (err error) {
	v := r.result.shown
	if v == nil {
		return errors.New("the machine has not run")
	}
	r.value, err = G.CloneValue(v)
	return err
}

func (r *hostReadback) Value() (G.Value, error) { return r.value, nil }
func (r *hostReadback) Close() error            { return nil }

// Close frees the copies. Closing its machine or solver does so, too.
func (r *AsyncReader) Close() error {
	return r.exclusively(func() error {
		if m := r.machine; m != nil {
			m.readers = slices.DeleteFunc(m.readers, func(other *AsyncReader) bool { return other == r })
		}
		return r.free()
	})
}

// free closes the reader. The caller has begun a call.
func (r *AsyncReader) free() error {
	r.closed = true
	var errs []error
	for i, back := range r.ring {
		if back != nil {
			errs = append(errs, back.Close())
			r.ring[i] = nil
		}
	}
	return errors.Join(errs...)
}
