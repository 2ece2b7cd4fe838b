package fakedevice

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

type stream struct {
	fake    *Backend
	cpu     graph.Stream
	queue   []func() error
	waiting atomic.Int64    // work of the queue, and what runs: for event.Done, which any goroutine may call
	ended   int             // how much work has been taken from the queue
	capture *[]func() error // what is recorded, nil outside of a capture
	side    bool            // the capture is that of another stream
	failed  error           // of work that has run before Synchronize, because the queue was full
}

// queueLength is how much work may wait, as in the queue of a real device.
const queueLength = 256

func (s *stream) enqueue(list ...func() error) {
	if s.capture != nil {
		*s.capture = append(*s.capture, list...)
		return
	}
	s.queue = append(s.queue, list...)
	s.waiting.Add(int64(len(list)))
	if len(s.queue) > queueLength {
		s.failed = errors.Join(s.failed, s.runQueue())
	}
}

// runQueue runs the work that waits, up to an error.
func (s *stream) runQueue() error { return s.runTo(s.ended + len(s.queue)) }

// runTo runs work until that much has been taken from the queue, or up to an error, which empties the queue.
func (s *stream) runTo(n int) error {
	for s.ended < n {
		f := s.queue[0]
		s.queue, s.ended = s.queue[1:], s.ended+1
		err := f()
		s.waiting.Add(-1)
		if err != nil {
			s.waiting.Add(-int64(len(s.queue)))
			s.queue, s.ended = nil, s.ended+len(s.queue)
			return err
		}
	}
	return nil
}

// After implements graph.Stream. Work of another stream runs as late as the calls of After allow.
func (s *stream) After(other graph.Stream) error {
	if err := s.fake.call("wait for a stream"); err != nil {
		return err
	}
	o := other.(*stream)
	switch {
	case s.capture == nil && o.capture != nil: // this stream joins the capture
		s.capture, s.side = new([]func() error), true
	case s.capture != nil && o.side: // it leaves it
		s.enqueue(*o.capture...)
		o.capture, o.side = nil, false
	case s.capture != nil && o.capture == nil:
		return errors.New("a capture cannot wait for work outside of it")
	case s.capture == nil:
		n := o.ended + len(o.queue)
		s.enqueue(func() error { return o.runTo(n) })
	}
	return nil
}

// call counts a call that is not allowed during a capture, and returns its error.
func (s *stream) call(name string) error {
	if s.capture != nil {
		return errors.New(name + " during a capture")
	}
	return s.fake.call(name)
}

func (s *stream) Upload(dst spec.Arg, src G.Value) error {
	if err := s.call("upload"); err != nil {
		return err
	}
	to, from := copyOf(dst), src
	if d, ok := src.(*value); ok {
		from = s.cpu.View(d.arg)
	} else {
		s.fake.Uploads++
		var err error
		if from, err = G.CloneValue(src); err != nil {
			return err
		}
	}
	s.enqueue(func() error { return s.cpu.Upload(to, from) })
	return nil
}

func (s *stream) Download(dst G.Value, src spec.Arg) error {
	if err := s.call("download"); err != nil {
		return err
	}
	s.fake.Downloads++
	from := copyOf(src)
	s.enqueue(func() error { return s.cpu.Download(dst, from) })
	return nil
}

func (s *stream) View(a spec.Arg) G.Value {
	return &value{spec.NewValue(a.Operand), copyOf(a), s}
}

// copyOf returns an operand with the current memory of a, which does not change with a's cell.
func copyOf(a spec.Arg) spec.Arg {
	b := *a.Buf
	return spec.Arg{Operand: a.Operand, Buf: &b}
}

func (s *stream) NewReadback(o spec.Operand) (graph.Readback, error) {
	if err := s.fake.call("new readback"); err != nil {
		return nil, err
	}
	return &readback{s, spec.NewValue(o)}, nil
}

type readback struct {
	stream *stream
	value  G.Value
}

func (r *readback) Fetch(src spec.Arg) error { return r.stream.Download(r.value, src) }
func (r *readback) Value() (G.Value, error)  { return r.value, r.stream.Synchronize() }
func (r *readback) Close() error             { return nil }

func (s *stream) NewEvent() (graph.Event, error) {
	e, err := s.cpu.NewEvent()
	return &event{e, s}, err
}

type event struct {
	graph.Event
	stream *stream
}

func (e *event) Record() error { e.stream.enqueue(e.Event.Record); return nil }

func (e *event) Since(start graph.Event) (time.Duration, error) {
	if err := e.stream.Synchronize(); err != nil {
		return 0, err
	}
	return e.Event.Since(start.(*event).Event)
}

// Done implements graph.Event: the work has ended when something has waited for it.
func (e *event) Done() (bool, error) { return e.stream.waiting.Load() == 0, nil }

func (s *stream) BeginCapture() error {
	if err := s.call("begin capture"); err != nil {
		return err
	}
	s.fake.Captures++
	s.capture = new([]func() error)
	return nil
}

func (s *stream) EndCapture() (graph.Replay, error) {
	captured := *s.capture
	s.capture = nil
	if err := s.fake.call("end capture"); err != nil {
		return nil, err
	}
	for _, o := range s.fake.all {
		if o.side {
			return nil, errors.New("end capture: another stream has not been joined")
		}
	}
	return replay(captured), nil
}

func (s *stream) Synchronize() error {
	if err := s.fake.call("synchronize"); err != nil {
		return err
	}
	s.fake.Synchronized++
	failed := errors.Join(s.failed, s.runQueue())
	s.failed = nil
	return failed
}

func (s *stream) Close() error {
	s.fake.Streams--
	s.fake.all = slices.DeleteFunc(s.fake.all, func(other *stream) bool { return other == s })
	return nil
}

type replay []func() error

func (r replay) Launch(s graph.Stream) error {
	stream := s.(*stream)
	if err := stream.fake.call("replay"); err != nil {
		return err
	}
	stream.fake.Replays++
	stream.enqueue(r...)
	return nil
}

func (r replay) Close() error { return nil }

// value is a value in the fake device's memory.
type value struct {
	G.Value // zeros of the same type and shape, on the host
	arg     spec.Arg
	stream  *stream
}

func (v *value) Uintptr() uintptr        { return uintptr(v.arg.Pointer()) }
func (v *value) Pointer() unsafe.Pointer { return v.arg.Pointer() }
func (v *value) Format(s fmt.State, _ rune) {
	fmt.Fprintf(s, "%v on the fake device", v.arg.Operand)
}

func (v *value) HostValue() (G.Value, error) {
	host := spec.NewValue(v.arg.Operand)
	return host, errors.Join(v.stream.Download(host, v.arg), v.stream.Synchronize())
}

func (v *value) Data() interface{} {
	host, err := v.HostValue()
	if err != nil {
		return err
	}
	return host.Data()
}
