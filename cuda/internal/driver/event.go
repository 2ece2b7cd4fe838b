package driver

import (
	"errors"
	"time"
	"unsafe"
)

// Event is a mark in a stream. It belongs to one goroutine at a time.
type Event struct {
	d      *Device
	h      Handle // 0 once closed
	timing bool

	stream *Stream // that it was recorded in, or nil
	mark   uint64  // of that stream's trail
}

// NewEvent returns an event. With timing, the time between two events can be measured; it costs a little more.
func (d *Device) NewEvent(timing bool) (*Event, error) {
	e := &Event{d: d, timing: timing}
	return create(d, e, kind{"event", 0}, "new event", func() error { return d.event(&e.h, timing) })
}

// event makes an event for which waiting threads sleep, with the context current.
func (d *Device) event(h *Handle, timing bool) error {
	flags := uintptr(eventBlockingSync)
	if !timing {
		flags |= EventDisableTiming
	}
	return get(d, d.fn.EventCreate, h, flags)
}

// Record puts e behind what has been enqueued in s. It cannot be captured.
func (s *Stream) Record(e *Event) error {
	return s.do("record event", func() error {
		switch {
		case e == nil || e.h == 0:
			return errClosed
		case e.d != s.d:
			return errForeign
		case s.capture != nil:
			return errCapturing
		}
		mark := s.trail.mark()
		if err := s.call(s.d.fn.EventRecord, e.h, s.h); err != nil {
			return err
		}
		e.stream, e.mark = s, mark
		return nil
	})
}

// Synchronize waits until the work before e has ended. It returns at once if e was never recorded.
func (e *Event) Synchronize() error {
	return e.d.do("wait for event", func() error {
		if e.h == 0 {
			return errClosed
		}
		f := e.d.fn.EventSynchronize
		if err := e.d.checkIn(e.stream, f, f.Call(e.h)); err != nil {
			return err
		}
		if e.stream != nil {
			e.stream.trail.end(e.mark)
		}
		return nil
	})
}

// Since returns the time from start to e on the device, to about half a microsecond. Both have timing, and the work before
// them has ended.
func (e *Event) Since(start *Event) (t time.Duration, err error) {
	err = e.d.do("time between events", func() error {
		switch {
		case e.h == 0 || start == nil || start.h == 0:
			return errClosed
		case start.d != e.d:
			return errForeign
		case !e.timing || !start.timing:
			return errors.New("the event has no timing")
		}
		var ms float32
		f := e.d.fn.EventElapsedTime
		r := f.Ask(uintptr(unsafe.Pointer(&ms)), start.h, e.h)
		t = time.Duration(float64(ms) * float64(time.Millisecond))
		return e.d.checkIn(e.stream, f, r)
	})
	return t, err
}

// Close frees the event.
func (e *Event) Close() error { return e.d.free(e, "close event") }

func (e *Event) destroy() error { return release(e.d, &e.h, e.d.fn.EventDestroy) }
