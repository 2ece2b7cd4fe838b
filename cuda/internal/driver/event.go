package driver

import (
	"errors"
	"time"
)

// Event is a mark in a stream. It belongs to one goroutine at a time.
type Event struct {
	d      *Device
	h      EventHandle // 0 once closed
	timing bool

	stream *Stream // that it was recorded in, or nil
	mark   uint64  // of that stream's trail
}

// NewEvent returns an event. With timing it can be asked how long ago another one came, and costs a little more.
func (d *Device) NewEvent(timing bool) (*Event, error) {
	if err := d.enter(); err != nil {
		return nil, d.failed("new event", err)
	}
	defer d.leave()
	flags := EventBlockingSync
	if d.spin {
		flags = 0
	}
	if !timing {
		flags |= EventDisableTiming
	}
	h, r := d.drv.EventCreate(flags)
	if err := d.check(nil, "cuEventCreate", r); err != nil {
		return nil, d.failed("new event", err)
	}
	e := &Event{d: d, h: h, timing: timing}
	d.adopt(e, kind{"event", 0})
	return e, nil
}

// Record puts e behind what has been enqueued in s: it comes when that has ended. It cannot be captured.
func (s *Stream) Record(e *Event) error {
	return s.do("record event", func() error {
		if err := e.usable(s.d); err != nil {
			return err
		}
		if s.capture != nil {
			return errCapturing
		}
		mark := s.trail.mark()
		if err := s.d.check(s, "cuEventRecord", s.d.drv.EventRecord(e.h, s.h)); err != nil {
			return err
		}
		e.stream, e.mark = s, mark
		return nil
	})
}

// Wait makes what is enqueued in s from now on wait for e, as it was recorded last: at once if it never was. The host does
// not wait. It cannot be captured.
func (s *Stream) Wait(e *Event) error {
	return s.do("wait for event", func() error {
		if err := e.usable(s.d); err != nil {
			return err
		}
		if s.capture != nil {
			return errCapturing
		}
		return s.d.check(s, "cuStreamWaitEvent", s.d.drv.StreamWaitEvent(s.h, e.h))
	})
}

// usable says whether e may be used with d.
func (e *Event) usable(d *Device) error {
	switch {
	case e == nil || e.h == 0:
		return errClosed
	case e.d != d:
		return errForeign
	}
	return nil
}

// Synchronize waits until e has come. An event that was never recorded is there.
func (e *Event) Synchronize() error {
	return e.do("wait for event", func() error {
		if err := e.d.check(e.stream, "cuEventSynchronize", e.d.drv.EventSynchronize(e.h)); err != nil {
			return err
		}
		e.came()
		return nil
	})
}

// Query says whether e has come, without waiting.
func (e *Event) Query() (bool, error) {
	there := false
	err := e.do("query event", func() error {
		r := e.d.drv.EventQuery(e.h)
		if r == NotReady {
			return nil
		}
		if err := e.d.check(e.stream, "cuEventQuery", r); err != nil {
			return err
		}
		e.came()
		there = true
		return nil
	})
	return there, err
}

// Since returns the time from start to e on the device, to about half a microsecond. Both have timing and have come.
func (e *Event) Since(start *Event) (time.Duration, error) {
	var t time.Duration
	err := e.do("time between events", func() error {
		if err := start.usable(e.d); err != nil {
			return err
		}
		if !e.timing || !start.timing {
			return errors.New("the event has no timing")
		}
		ms, r := e.d.drv.EventElapsedTime(start.h, e.h)
		t = time.Duration(float64(ms) * float64(time.Millisecond))
		return e.d.check(e.stream, "cuEventElapsedTime", r)
	})
	return t, err
}

// came notes that all before e has ended.
func (e *Event) came() {
	if e.stream != nil {
		e.stream.trail.end(e.mark)
	}
}

func (e *Event) do(what string, f func() error) error {
	err := e.usable(e.d)
	if err == nil {
		if err = e.d.enter(); err == nil {
			err = f()
			e.d.leave()
		}
	}
	return e.d.failed(what, err)
}

// Close frees the event. Streams that wait for it go on doing so.
func (e *Event) Close() error { return e.d.free(e, "close event") }

func (e *Event) destroy() error {
	if e.h == 0 {
		return nil
	}
	if err := e.d.check(nil, "cuEventDestroy", e.d.drv.EventDestroy(e.h)); err != nil {
		return err
	}
	e.h = 0
	return nil
}
