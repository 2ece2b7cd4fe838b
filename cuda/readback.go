package cuda

import (
	"errors"
	"fmt"
	"time"

	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// readback is pinned memory for copies of one operand.
type readback struct {
	stream  *Stream
	operand ops.Operand
	pinned  *driver.Host
	copied  *driver.Event // behind the last copy
	value   gorgonia.Value
	cell    cpu.Buf // of value
}

// NewReadback implements graph.Stream. It has pinned memory and an event, which Close frees.
func (s *Stream) NewReadback(o ops.Operand) (graph.Readback, error) {
	if ops.IsHalf(o.Dtype) {
		return nil, fmt.Errorf("cuda: readback of %v: the host has no half precision", o)
	}
	r := &readback{stream: s, operand: o, value: ops.NewValue(o)}
	err := ops.HoldValue(&r.cell, r.value, o)
	if err != nil {
		return nil, err
	}
	if r.pinned, err = s.backend.dev.NewHost(o.Bytes()); err != nil {
		return nil, err
	}
	if r.copied, err = s.backend.dev.NewEvent(false); err != nil {
		return nil, errors.Join(err, r.pinned.Free())
	}
	return r, nil
}

// Fetch implements graph.Readback.
func (r *readback) Fetch(src ops.Arg) error {
	if r.stream.queue.Capturing() {
		return errCapturing
	}
	if src.Dtype != r.operand.Dtype || !src.Shape.Eq(r.operand.Shape) {
		return fmt.Errorf("cuda: readback: got %v, want %v", src.Operand, r.operand)
	}
	if err := r.stream.queue.CopyOut(r.pinned, 0, driver.Address(src.Buf), r.operand.Bytes()); err != nil {
		return err
	}
	return r.stream.queue.Record(r.copied)
}

// Value implements graph.Readback.
func (r *readback) Value() (gorgonia.Value, error) {
	if err := r.copied.Synchronize(); err != nil {
		return nil, err
	}
	copy(bytesOf(&r.cell), r.pinned.Bytes())
	return r.value, nil
}

// Close waits for the last Fetch and frees the memory.
func (r *readback) Close() error {
	return errors.Join(r.copied.Synchronize(), r.copied.Close(), r.pinned.Free())
}

// event is a mark with timing.
type event struct {
	*driver.Event
	stream *Stream
}

// NewEvent implements graph.Stream.
func (s *Stream) NewEvent() (graph.Event, error) {
	e, err := s.backend.dev.NewEvent(true)
	if err != nil {
		return nil, err
	}
	return &event{e, s}, nil
}

// Record implements graph.Event.
func (e *event) Record() error { return e.stream.queue.Record(e.Event) }

// Since implements graph.Event.
func (e *event) Since(start graph.Event) (time.Duration, error) {
	from, ok := start.(*event)
	if !ok {
		return 0, fmt.Errorf("cuda: time since an event of another backend, %T", start)
	}
	if err := errors.Join(from.Synchronize(), e.Synchronize()); err != nil {
		return 0, err
	}
	return e.Event.Since(from.Event)
}
