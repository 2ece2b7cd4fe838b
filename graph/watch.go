package graph

import (
	"errors"
	"fmt"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops"
)

// WatchDepth is the number of copies that a Watch holds until they are read.
const WatchDepth = 2

// Watch reads a value on the host while the device goes on. Fetch copies the result of a run, and Next reads the copy while
// a later run is under way. It belongs to the goroutine of its machine.
type Watch struct {
	name          string
	arg           ops.Arg
	cell          cpu.Buf              // holds the copy that is read
	ring          [WatchDepth]Readback // copy i is in i % WatchDepth
	fetched, read int                  // number of copies so far
	closed        bool
}

// newWatch returns a Watch with readbacks that newReadback makes.
func newWatch(name string, a ops.Arg, newReadback func(ops.Operand) (Readback, error)) (*Watch, error) {
	if dt := a.Dtype; dt != tensor.Float32 && dt != tensor.Float64 {
		return nil, fmt.Errorf("watch of %s: type %s, want float32 or float64", name, value.TypeName(dt))
	}
	w := &Watch{name: name, arg: a}
	for i := range w.ring {
		var err error
		if w.ring[i], err = newReadback(a.Operand); err != nil {
			return nil, errors.Join(fmt.Errorf("watch of %s: %w", name, err), w.Close())
		}
	}
	return w, nil
}

// NewWatch returns a Watch of an operand outside of a graph, such as a solver's norm, in the stream s. Its type is float32
// or float64. Close the Watch before s. Errors contain the name.
func NewWatch(s Stream, name string, a ops.Arg) (*Watch, error) {
	return newWatch(name, a, s.NewReadback)
}

// Watch returns a Watch of a node of float32 or float64 that is computed and has a value after a run. Closing the machine
// closes it.
func (m *Machine) Watch(n *G.Node) (*Watch, error) {
	if m.stream == nil {
		return nil, errMachineClosed
	}
	v, ok := m.operandOf[n]
	if !ok || !v.keep || v.kind != fromKernel && v.kind != fromHost {
		return nil, fmt.Errorf("graph: machine: watch of %s: it is not computed, or has no value after a run: see WithKeep", describe(n))
	}
	readback := m.stream.NewReadback
	if v.kind == fromHost {
		readback = func(ops.Operand) (Readback, error) { return &hostReadback{result: &m.state[v.id]}, nil }
	}
	w, err := newWatch(v.name, v.arg, readback)
	if err != nil {
		return nil, fmt.Errorf("graph: machine: %w", err)
	}
	m.watches = append(m.watches, w)
	return w, nil
}

// named puts the name of what is watched before an error. Use it with defer.
func (w *Watch) named(err *error) {
	if *err != nil {
		*err = fmt.Errorf("graph: watch of %s: %w", w.name, *err)
	}
}

// Fetch enqueues a copy of the value of the last run, which may still be running. At most WatchDepth copies may wait to be
// read.
func (w *Watch) Fetch() (err error) {
	defer w.named(&err)
	switch {
	case w.closed:
		return errClosed
	case w.Waiting() == WatchDepth:
		return fmt.Errorf("%d copies are not read yet", WatchDepth)
	}
	if err = w.ring[w.fetched%WatchDepth].Fetch(w.arg); err == nil {
		w.fetched++
	}
	return err
}

// Waiting returns the number of copies that Next has not returned yet.
func (w *Watch) Waiting() int { return w.fetched - w.read }

// Next waits for the oldest unread copy and returns the first element of the value. It allocates nothing.
func (w *Watch) Next() (x float64, err error) {
	defer w.named(&err)
	switch {
	case w.closed:
		return 0, errClosed
	case w.Waiting() == 0:
		return 0, errors.New("no copy waits to be read: call Fetch first")
	}
	v, err := w.ring[w.read%WatchDepth].Value()
	w.read++
	if err == nil {
		err = ops.HoldValue(&w.cell, v, w.arg.Operand)
	}
	switch {
	case err != nil:
		return 0, err
	case w.arg.Dtype == tensor.Float32:
		return float64(cpu.Slice[float32](&w.cell)[0]), nil
	}
	return cpu.Slice[float64](&w.cell)[0], nil
}

// hostReadback copies the result of an op on the host.
type hostReadback struct {
	result *state
	value  G.Value
}

func (r *hostReadback) Fetch(ops.Arg) (err error) {
	v := r.result.bound
	if v == nil {
		return errors.New("the machine has not run")
	}
	r.value, err = G.CloneValue(v)
	return err
}

func (r *hostReadback) Value() (G.Value, error) { return r.value, nil }
func (r *hostReadback) Close() error            { return nil }

// Close ends the watch. Closing its machine or solver does so, too.
func (w *Watch) Close() error {
	w.closed = true
	var errs []error
	for i, r := range w.ring {
		if r != nil {
			errs = append(errs, r.Close())
			w.ring[i] = nil
		}
	}
	return errors.Join(errs...)
}
