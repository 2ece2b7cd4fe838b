package cuda

import (
	"errors"
	"fmt"
	"time"

	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Stream implements graph.Stream.
type Stream struct {
	backend *Backend
	queue   *driver.Stream
	cell    cpu.Buf // points at the host value during a copy
}

// Upload implements graph.Stream. A host value goes through pinned memory.
func (s *Stream) Upload(dst spec.Arg, src gorgonia.Value) error {
	if v, ok := src.(*Value); ok {
		if s.queue.Capturing() {
			return errors.New("cuda: copies cannot be captured")
		}
		if v.stream.backend != s.backend {
			return fmt.Errorf("cuda: got a value of another backend, on %v", v.stream.backend.dev)
		}
		if v.operand.Dtype != dst.Dtype || v.operand.Elements() != dst.Elements() {
			return fmt.Errorf("got %v, want %v", v.operand, dst.Operand)
		}
		to, from := driver.Address(dst.Buf), driver.Address(&v.cell)
		if to == from {
			return nil
		}
		return s.queue.Copy(to, from, dst.Operand.Bytes())
	}
	if err := spec.PointAtValue(&s.cell, src, dst.Operand); err != nil {
		return err
	}
	defer s.cell.Set(nil, 0)
	return s.queue.Upload(driver.Address(dst.Buf), cpu.Slice[byte](&s.cell))
}

func (s *Stream) Download(dst gorgonia.Value, src spec.Arg) error {
	if err := spec.PointAtValue(&s.cell, dst, src.Operand); err != nil {
		return err
	}
	defer s.cell.Set(nil, 0)
	if uintptr(s.cell.Pointer()) != dst.Uintptr() {
		return errors.New("cuda: the destination of a copy is not contiguous and row-major")
	}
	return s.queue.Download(cpu.Slice[byte](&s.cell), driver.Address(src.Buf))
}

// View implements graph.Stream: it returns a *Value.
func (s *Stream) View(a spec.Arg) gorgonia.Value {
	return &Value{stream: s, block: s.backend.dev.MemoryAt(driver.Address(a.Buf)), operand: a.Operand, cell: *a.Buf}
}

func (s *Stream) After(other graph.Stream) error {
	o, ok := other.(*Stream)
	if !ok || o.backend != s.backend {
		return fmt.Errorf("cuda: wait for a stream of another backend, %T", other)
	}
	return s.queue.After(o.queue)
}

func (s *Stream) BeginCapture() error { return s.queue.BeginCapture() }

func (s *Stream) EndCapture() (graph.Replay, error) {
	r, err := s.queue.EndCapture()
	if err != nil {
		return nil, err
	}
	return replay{r}, nil
}

func (s *Stream) Synchronize() error { return s.queue.Synchronize() }

// Close waits for the enqueued work and frees the stream.
func (s *Stream) Close() error { return s.queue.Close() }

// replay is a captured sequence of launches.
type replay struct{ *driver.Replay }

func (r replay) Launch(s graph.Stream) error {
	stream, ok := s.(*Stream)
	if !ok {
		return fmt.Errorf("cuda: captured graph on a stream of another backend, %T", s)
	}
	return stream.queue.Replay(r.Replay)
}

// readback is pinned memory for copies of one operand, and the host value that Value fills from it.
type readback struct {
	*driver.Readback
	operand spec.Operand
	value   gorgonia.Value
	cell    cpu.Buf // of value
}

func (s *Stream) NewReadback(o spec.Operand) (graph.Readback, error) {
	if spec.IsHalf(o.Dtype) {
		return nil, fmt.Errorf("cuda: readback of %v: the host has no half precision", o)
	}
	r := &readback{operand: o, value: spec.NewValue(o)}
	err := spec.PointAtValue(&r.cell, r.value, o)
	if err != nil {
		return nil, err
	}
	if r.Readback, err = s.queue.NewReadback(o.Bytes()); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *readback) Fetch(src spec.Arg) error {
	if src.Dtype != r.operand.Dtype || !src.Shape.Eq(r.operand.Shape) {
		return fmt.Errorf("cuda: readback: got %v, want %v", src.Operand, r.operand)
	}
	return r.Readback.Fetch(driver.Address(src.Buf))
}

func (r *readback) Value() (gorgonia.Value, error) {
	b, err := r.Wait()
	if err != nil {
		return nil, err
	}
	copy(cpu.Slice[byte](&r.cell), b)
	return r.value, nil
}

// event implements graph.Event.
type event struct{ *driver.Event }

func (s *Stream) NewEvent() (graph.Event, error) {
	e, err := s.queue.NewEvent()
	if err != nil {
		return nil, err
	}
	return event{e}, nil
}

func (e event) Since(start graph.Event) (time.Duration, error) {
	from, ok := start.(event)
	if !ok {
		return 0, fmt.Errorf("cuda: time since an event of another backend, %T", start)
	}
	return e.Event.Since(from.Event)
}
