package cuda

import (
	"fmt"
	"time"

	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// readback is pinned memory for copies of one operand, and the value that shows them.
type readback struct {
	*driver.Readback
	operand ops.Operand
	value   gorgonia.Value
	cell    cpu.Buf // of value
}

// NewReadback implements graph.Stream.
func (s *Stream) NewReadback(o ops.Operand) (graph.Readback, error) {
	if ops.IsHalf(o.Dtype) {
		return nil, fmt.Errorf("cuda: readback of %v: the host has no half precision", o)
	}
	r := &readback{operand: o, value: ops.NewValue(o)}
	err := ops.HoldValue(&r.cell, r.value, o)
	if err != nil {
		return nil, err
	}
	if r.Readback, err = s.queue.NewReadback(o.Bytes()); err != nil {
		return nil, err
	}
	return r, nil
}

// Fetch implements graph.Readback.
func (r *readback) Fetch(src ops.Arg) error {
	if src.Dtype != r.operand.Dtype || !src.Shape.Eq(r.operand.Shape) {
		return fmt.Errorf("cuda: readback: got %v, want %v", src.Operand, r.operand)
	}
	return r.Readback.Fetch(driver.Address(src.Buf))
}

// Value implements graph.Readback.
func (r *readback) Value() (gorgonia.Value, error) {
	b, err := r.Wait()
	if err != nil {
		return nil, err
	}
	copy(bytesOf(&r.cell), b)
	return r.value, nil
}

// event is a mark with the time.
type event struct{ *driver.Event }

// NewEvent implements graph.Stream.
func (s *Stream) NewEvent() (graph.Event, error) {
	e, err := s.queue.NewEvent()
	if err != nil {
		return nil, err
	}
	return event{e}, nil
}

// Since implements graph.Event.
func (e event) Since(start graph.Event) (time.Duration, error) {
	from, ok := start.(event)
	if !ok {
		return 0, fmt.Errorf("cuda: time since an event of another backend, %T", start)
	}
	return e.Event.Since(from.Event)
}
