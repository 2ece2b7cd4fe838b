package driver

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
)

// Stream is a queue of a device. Its work runs in the order in which it is enqueued, and in no fixed order with the
// work of other streams. A Stream belongs to one goroutine at a time. Close drops a capture and waits for the enqueued
// work.
type Stream struct {
	owned
	h        Handle // 0 once closed
	borrowed bool   // h is not ours to destroy
	done     mark   // recorded to wait for all enqueued work
	fork     mark   // recorded for After of another stream
	trail    trail
	stage    stage

	capture   *Replay // what is being recorded, or nil
	side      bool    // the capture is that of another stream, which this one has joined by After
	abandoned bool    // the capture has failed: the next call drops it first
}

// The entries of copies and fills in a trail.
var (
	copyIn     = &Launched{Op: "copy to the device"}
	copyOut    = &Launched{Op: "copy to the host"}
	copyWithin = &Launched{Op: "copy on the device"}
	fill       = &Launched{Op: "fill"}
)

func (d *Device) NewStream() (*Stream, error) { return d.newStream(0, false, false) }

// NewUrgentStream returns a new stream of the highest priority: its blocks get the next free multiprocessors.
func (d *Device) NewUrgentStream() (*Stream, error) { return d.newStream(0, false, true) }

// BorrowStream returns a Stream over a queue that another library has made in the device's context. Work of both runs
// in the order in which it is enqueued. A Fault does not list the other library's work. Close waits for the enqueued
// work and does not destroy the queue: its owner destroys it after that.
func (d *Device) BorrowStream(h Handle) (*Stream, error) {
	if h == 0 {
		return nil, d.failed("borrow stream", errors.New("got the default stream, which has no queue of its own"))
	}
	return d.newStream(h, false, false)
}

// newStream returns a stream over a borrowed queue, or over a new one if borrowed is 0. Device.Close frees a kept
// stream, which is no leak.
func (d *Device) newStream(borrowed Handle, kept, urgent bool) (*Stream, error) {
	s := &Stream{borrowed: borrowed != 0}
	s.owned = owned{d: d, name: "stream", kept: kept, rank: rankStream, finish: s.finish}
	marks := []*mark{&s.done, &s.fork, &s.stage.full[0], &s.stage.full[1]}
	s.parts = []part{{&s.h, d.fn.StreamDestroy}, {&s.stage.mem, d.fn.MemFreeHost}}
	for _, m := range marks {
		m.s = s
		s.parts = append(s.parts, part{&m.h, d.fn.EventDestroy})
	}
	return create(s, &s.owned, func() error {
		for _, m := range marks {
			if err := m.create(eventDisableTiming); err != nil {
				return err
			}
		}
		if s.h = borrowed; s.borrowed {
			return nil
		}
		priority := 0
		if urgent {
			priority = -100 // the driver takes the highest that there is
		}
		return get(d, d.fn.StreamCreateWithPriority, &s.h, streamNonBlocking, uintptr(priority))
	})
}

// finish drops a capture and waits for the enqueued work.
func (s *Stream) finish() error {
	if s.capture != nil && !s.side {
		if err := s.drop(); err != nil {
			return err
		}
	}
	if s.h == 0 {
		return nil
	}
	err := s.wait()
	if err == nil && s.borrowed {
		s.h = 0
	}
	return err
}

func (s *Stream) Device() *Device { return s.d }

// Handle returns the driver's stream, for calls of other CUDA libraries.
func (s *Stream) Handle() Handle { return s.h }

// do is Device.do for a call of the stream. It refuses a closed stream and first drops an abandoned capture.
func (s *Stream) do(what any, f func() error) error {
	return s.d.do(what, func() error {
		if err := s.check(); err != nil {
			return err
		}
		if s.abandoned {
			if err := s.drop(); err != nil {
				return err
			}
		}
		return f()
	})
}

// doUncaptured is do for a call that cannot be captured. It refuses a used object that has been freed.
func (s *Stream) doUncaptured(what any, used *owned, f func() error) error {
	return s.do(what, func() error {
		if s.capture != nil {
			return errCapturing
		}
		if err := used.check(); err != nil {
			return err
		}
		return f()
	})
}

// remember adds l to the trail, or to the capture under way. With blocking launches it waits for l.
func (s *Stream) remember(l *Launched) error {
	if s.capture != nil {
		s.capture.launched.Parts = append(s.capture.launched.Parts, l)
		return nil
	}
	s.trail.add(l)
	if s.d.blocking {
		return s.wait()
	}
	return nil
}

// spinTime is how long a thread polls a stream before it sleeps. A thread that sleeps wakes tens of microseconds late,
// so spinTime is longer than a step of decoding.
const spinTime = 2 * time.Millisecond

// wait waits until all enqueued work has ended: it polls for spinTime, then sleeps. cuStreamSynchronize would never
// sleep.
func (s *Stream) wait() error {
	if err := s.done.record(); err != nil {
		return err
	}
	for start := time.Now(); time.Since(start) < spinTime; {
		r := s.d.fn.EventQuery.Call(s.done.h)
		if Result(int32(r)) == NotReady {
			continue
		}
		if err := s.d.check(s.d.fn.EventQuery, r); err != nil {
			return err
		}
		break
	}
	err := s.done.wait()
	if err == nil {
		s.stage.ended()
	}
	return err
}

// Synchronize waits until all enqueued work has ended. Then the destinations of downloads hold their data. A failure of
// the work is a *Fault.
func (s *Stream) Synchronize() error { return s.doUncaptured("synchronize", &s.owned, s.wait) }

// After makes what is enqueued in s from now on wait for what other holds now. If other captures, s joins the capture
// until its end; before EndCapture, a stream of the capture must call After(s). If s captures, other must be in the
// same capture: captured work cannot wait for other work.
func (s *Stream) After(other *Stream) error {
	return s.do("wait for a stream", func() error {
		if other == nil || other.d != s.d {
			return errForeign
		}
		if err := other.check(); err != nil {
			return err
		}
		if other.abandoned {
			if err := other.drop(); err != nil {
				return err
			}
		}
		if s.capture != nil && s.capture != other.capture {
			return errOutside
		}
		if err := other.fork.record(); err != nil {
			return err
		}
		if err := s.d.call(s.d.fn.StreamWaitEvent, s.h, other.fork.h, 0); err != nil {
			return err
		}
		if s.capture == nil && other.capture != nil {
			s.capture, s.side = other.capture, true
			s.capture.sides = append(s.capture.sides, s)
		}
		return nil
	})
}

func (s *Stream) Copy(dst, src DevicePtr, bytes int) error {
	return s.enqueueTransfer(copyWithin, s.d.fn.MemcpyDtoDAsync, uintptr(dst), uintptr(src), bytes)
}

// Fill8 enqueues a fill of that many bytes with value.
func (s *Stream) Fill8(dst DevicePtr, value uint8, bytes int) error {
	return s.enqueueTransfer(fill, s.d.fn.MemsetD8Async, uintptr(dst), uintptr(value), bytes)
}

// enqueueTransfer calls f, a copy from the address `from` or a fill with the value `from`, and remembers it as l. For
// zero bytes it does nothing.
func (s *Stream) enqueueTransfer(l *Launched, f *sharedlib.Func, dst, from uintptr, bytes int) error {
	if bytes == 0 {
		return nil
	}
	return s.do(l, func() error {
		if bytes < 0 {
			return fmt.Errorf("got a length of %d, want 0 or more", bytes)
		}
		if err := s.d.call(f, dst, from, uintptr(bytes), s.h); err != nil {
			return err
		}
		return s.remember(l)
	})
}

// Enqueue calls f, which enqueues work of another library in the stream. Enqueue remembers that work as l. f runs on a
// locked thread with the device's context current. A capture may be under way. Enqueue itself allocates nothing. The
// error is that of f, or the *Fault of earlier work that made f fail.
func (s *Stream) Enqueue(l *Launched, f func(stream Handle) error) error {
	if l == nil || f == nil {
		return s.d.failed("enqueue", errors.New("got no launch, or nothing to call"))
	}
	return s.do(l, func() error {
		err := f(s.h)
		if err == nil {
			return s.remember(l)
		}
		if fault, ok := s.d.call(s.d.fn.EventQuery, s.done.h).(*Fault); ok { // f's own error code does not tell of a fault
			return fault
		}
		return err
	})
}

// trailLength is the number of launches that a trail remembers.
const trailLength = 64

// trail remembers the newest launches of a stream that are not known to have ended. It allocates nothing to add one.
type trail struct {
	mu    sync.Mutex
	ring  [trailLength]*Launched
	count uint64 // of all launches so far
	ended uint64 // of those that are known to have ended
}

func (t *trail) add(l *Launched) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ring[t.count%trailLength] = l
	t.count++
}

// now returns the number of launches so far.
func (t *trail) now() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count
}

// end notes that the first n launches have ended.
func (t *trail) end(n uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = max(t.ended, n)
}

// pending returns the launches that may be under way, newest first, and their number, which counts forgotten ones, too.
func (t *trail) pending() (l []*Launched, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := t.count; i > t.ended && t.count-i < trailLength; i-- {
		l = append(l, t.ring[(i-1)%trailLength])
	}
	return l, int(t.count - t.ended)
}
