package driver

import (
	"cmp"
	"fmt"
	"time"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
)

// mark is an event of the driver, recorded in one stream. Its methods need the context to be current.
type mark struct {
	s  *Stream
	h  Handle
	at uint64 // the end of the stream's trail when it was recorded
}

// create creates the event. A thread that waits for it sleeps.
func (m *mark) create(flags uintptr) error {
	return get(m.s.d, m.s.d.fn.EventCreate, &m.h, eventBlockingSync|flags)
}

// record records the mark after the work enqueued so far.
func (m *mark) record() error {
	at := m.s.trail.now()
	err := m.s.d.call(m.s.d.fn.EventRecord, m.h, m.s.h)
	if err == nil {
		m.at = at
	}
	return err
}

// wait waits until the work before the mark has ended. It returns at once if the mark has not been made or recorded.
func (m *mark) wait() error {
	if m.h == 0 {
		return nil
	}
	err := m.s.d.call(m.s.d.fn.EventSynchronize, m.h)
	if err == nil {
		m.s.trail.end(m.at)
	}
	return err
}

// Event is a mark in a stream, to measure time on the device. It belongs to one goroutine at a time.
type Event struct {
	owned
	mark mark
}

func (s *Stream) NewEvent() (*Event, error) {
	e := &Event{mark: mark{s: s}}
	e.owned = owned{d: s.d, name: "event", parts: []part{{&e.mark.h, s.d.fn.EventDestroy}}}
	return create(e, &e.owned, func() error { return e.mark.create(0) })
}

// Record records e in its stream, after the work enqueued so far. It cannot be captured.
func (e *Event) Record() error {
	return e.mark.s.doUncaptured("record event", &e.owned, e.mark.record)
}

// Since returns the time from start to e on the device, to about half a microsecond. Both must have been recorded. It
// waits for both.
func (e *Event) Since(start *Event) (t time.Duration, err error) {
	err = e.d.do("time between events", func() error {
		if start == nil || start.d != e.d {
			return errForeign
		}
		for _, x := range []*Event{start, e} {
			if err := cmp.Or(x.check(), x.mark.wait()); err != nil {
				return err
			}
		}
		var ms float32
		err := get(e.d, e.d.fn.EventElapsedTime, &ms, start.mark.h, e.mark.h)
		t = time.Duration(float64(ms) * float64(time.Millisecond))
		return err
	})
	return t, err
}

// Done reports, without waiting, whether the work before e has ended.
func (e *Event) Done() (done bool, err error) {
	err = e.d.do("query event", func() error {
		if err := e.check(); err != nil {
			return err
		}
		r := e.d.fn.EventQuery.Call(e.mark.h)
		if Result(int32(r)) == NotReady {
			return nil
		}
		done = true
		return e.d.check(e.d.fn.EventQuery, r)
	})
	return done && err == nil, err
}

// Readback is pinned host memory for copies from the device that run while the host does other work. It belongs to one
// goroutine at a time.
type Readback struct {
	owned
	mem    Handle // its address
	copied mark   // recorded after the last copy
}

// NewReadback returns pinned memory for copies of that many bytes. The copies run in s.
func (s *Stream) NewReadback(bytes int) (*Readback, error) {
	if bytes < 1 {
		return nil, s.d.failed("pinned memory", fmt.Errorf("got %d bytes, want 1 or more", bytes))
	}
	r := &Readback{copied: mark{s: s}}
	r.owned = owned{d: s.d, name: "pinned memory", bytes: bytes, finish: r.copied.wait,
		parts: []part{{&r.copied.h, s.d.fn.EventDestroy}, {&r.mem, s.d.fn.MemFreeHost}}}
	return create(r, &r.owned, func() error {
		if err := r.copied.create(eventDisableTiming); err != nil {
			return err
		}
		return s.d.allocate(&r.mem, bytes, true)
	})
}

// Fetch enqueues a copy of device memory, which overwrites the copy before it. It cannot be captured.
func (r *Readback) Fetch(src DevicePtr) error {
	s := r.copied.s
	return s.doUncaptured(copyOut, &r.owned, func() error {
		if err := s.d.call(s.d.fn.MemcpyDtoHAsync, r.mem, uintptr(src), uintptr(r.bytes), s.h); err != nil {
			return err
		}
		if err := s.remember(copyOut); err != nil {
			return err
		}
		return r.copied.record()
	})
}

// Wait waits for the last Fetch, but not for work enqueued after it, and returns the bytes. They are valid until the
// next Fetch or Close.
func (r *Readback) Wait() ([]byte, error) {
	err := r.d.do(r, func() error { return cmp.Or(r.check(), r.copied.wait()) })
	if err != nil {
		return nil, err
	}
	return unsafe.Slice(sharedlib.PointerTo[byte](r.mem), r.bytes), nil
}
