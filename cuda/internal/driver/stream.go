package driver

import (
	"errors"
	"fmt"

	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
)

// Stream is a queue of a device: what is enqueued runs in order, and in no order with what is in other streams. It belongs
// to one goroutine at a time.
type Stream struct {
	d        *Device
	h        Handle // 0 once closed
	borrowed bool   // h is not ours to destroy
	done     Handle // an event, to wait for the end of what is enqueued
	trail    trail

	capture   *Replay // what is being recorded, or nil
	abandoned bool    // the capture has failed: to be dropped before anything else

	stage                         stage
	copyIn, copyOut, copyOn, fill Launched // what copies and fills are remembered as
}

// NewStream returns a new stream.
func (d *Device) NewStream() (*Stream, error) { return d.newStream("stream", 0) }

// BorrowStream returns a Stream on a queue that a library beside this package has made in the device's context. Close waits
// for what is under way and leaves the queue to its owner, who destroys it after that. What the owner enqueues meanwhile
// runs in order with what is enqueued here; a Fault knows nothing of it.
func (d *Device) BorrowStream(h Handle) (*Stream, error) {
	if h == 0 {
		return nil, d.failed("borrow stream", errors.New("got the default stream, which has no queue of its own"))
	}
	return d.newStream("borrowed stream", h)
}

// newStream returns a stream on queue h, or on a new one if that is 0. Its kind is named name.
func (d *Device) newStream(name string, h Handle) (*Stream, error) {
	s := &Stream{d: d, h: h, borrowed: h != 0, copyIn: Launched{Op: "copy to the device"}, copyOut: Launched{Op: "copy to the host"},
		copyOn: Launched{Op: "copy on the device"}, fill: Launched{Op: "fill"}}
	return create(d, s, kind{name, 0}, name, func() error {
		if !s.borrowed {
			if err := get(d, d.fn.StreamCreate, &s.h, streamNonBlocking); err != nil {
				return err
			}
		}
		return d.event(&s.done, false)
	})
}

// Device returns the stream's device.
func (s *Stream) Device() *Device { return s.d }

// Handle returns the driver's stream, for libraries that are called beside this package.
func (s *Stream) Handle() Handle { return s.h }

// enter is Device.enter for the calls of a stream.
func (s *Stream) enter() error {
	if s.h == 0 {
		return fmt.Errorf("the stream is %w", errClosed)
	}
	if err := s.d.enter(); err != nil {
		return err
	}
	if s.abandoned {
		if err := s.drop(); err != nil {
			s.d.leave()
			return err
		}
	}
	return nil
}

// do calls f with the context current. what names the call in errors.
func (s *Stream) do(what string, f func() error) error {
	err := s.enter()
	if err == nil {
		err = f()
		s.d.leave()
	}
	return s.d.failed(what, err)
}

// call is Device.call for a call in the stream.
func (s *Stream) call(f *sharedlib.Func, args ...uintptr) error { return s.check(f, f.Call(args...)) }

// check is Device.check for a call in the stream.
func (s *Stream) check(f *sharedlib.Func, result uintptr) error { return s.d.checkIn(s, f, result) }

// enqueued remembers l, in the trail or in the capture under way.
func (s *Stream) enqueued(l *Launched) error {
	if s.capture != nil {
		s.capture.launched.Parts = append(s.capture.launched.Parts, l)
		return nil
	}
	s.trail.add(l)
	if s.d.blocking {
		return s.d.failed(l.Op, s.wait())
	}
	return nil
}

// wait waits until all that was enqueued has ended. The thread sleeps: cuStreamSynchronize would spin.
func (s *Stream) wait() error {
	mark := s.trail.mark()
	if err := s.call(s.d.fn.EventRecord, s.done, s.h); err != nil {
		return err
	}
	if err := s.call(s.d.fn.EventSynchronize, s.done); err != nil {
		return err
	}
	s.trail.end(mark)
	return nil
}

// Synchronize waits until all that was enqueued has ended. Then downloads have their data. An error is that of the
// call, or a *Fault.
func (s *Stream) Synchronize() error {
	return s.do("synchronize", func() error {
		if s.capture != nil {
			return errCapturing
		}
		if err := s.wait(); err != nil {
			return err
		}
		s.stage.ended()
		return nil
	})
}

// CopyOut enqueues a copy of bytes of the device to dst at offset. dst holds them when the copy has ended.
func (s *Stream) CopyOut(dst *Host, offset int, src DevicePtr, bytes int) error {
	if bytes == 0 {
		return nil
	}
	if dst == nil || dst.mem == nil {
		return s.d.failed(s.copyOut.Op, errClosed)
	}
	if offset < 0 || bytes < 0 || offset > len(dst.mem)-bytes {
		return s.d.failed(s.copyOut.Op, fmt.Errorf("got bytes %d to %d of pinned memory, want 0 to %d", offset, offset+bytes, len(dst.mem)))
	}
	return s.enqueue(&s.copyOut, s.d.fn.MemcpyDtoHAsync, address(dst.mem[offset:]), uintptr(src), bytes)
}

// Copy enqueues a copy within the device.
func (s *Stream) Copy(dst, src DevicePtr, bytes int) error {
	return s.enqueue(&s.copyOn, s.d.fn.MemcpyDtoDAsync, uintptr(dst), uintptr(src), bytes)
}

// Fill8 enqueues setting bytes to value.
func (s *Stream) Fill8(dst DevicePtr, value uint8, bytes int) error {
	return s.enqueue(&s.fill, s.d.fn.MemsetD8Async, uintptr(dst), uintptr(value), bytes)
}

// enqueue calls a copy or a fill, from or with a value, which is remembered as l. No bytes are no work.
func (s *Stream) enqueue(l *Launched, f *sharedlib.Func, dst, from uintptr, bytes int) error {
	if bytes == 0 {
		return nil
	}
	return s.do(l.Op, func() error {
		if bytes < 0 {
			return fmt.Errorf("got a length of %d, want 0 or more", bytes)
		}
		if err := s.call(f, dst, from, uintptr(bytes), s.h); err != nil {
			return err
		}
		return s.enqueued(l)
	})
}

// Enqueue calls f, which enqueues work in the stream by a library that is called beside this package, and remembers that
// work as l. f runs with the device's context current, on a thread that it keeps for the time of the call; it may be called
// while a capture is under way. Enqueue allocates nothing by itself. The error is that of f, or the *Fault of earlier work
// that has made f fail.
func (s *Stream) Enqueue(l *Launched, f func(stream Handle) error) error {
	if l == nil || f == nil {
		return s.d.failed("enqueue", errors.New("got no launch, or nothing to call"))
	}
	return s.do(l.Op, func() error {
		err := f(s.h)
		if err == nil {
			return s.enqueued(l)
		}
		if fault, ok := s.call(s.d.fn.EventQuery, s.done).(*Fault); ok { // libraries have error codes of their own
			return fault
		}
		return err
	})
}

// Close waits for what is under way and frees the stream, or gives back one that is borrowed. A capture under way is dropped.
func (s *Stream) Close() error { return s.d.free(s, "close stream") }

func (s *Stream) destroy() error {
	if s.capture != nil {
		if err := s.drop(); err != nil {
			return err
		}
	}
	if s.h != 0 {
		mark := s.trail.mark()
		if err := s.call(s.d.fn.StreamSynchronize, s.h); err != nil {
			return err
		}
		s.trail.end(mark)
		s.stage.ended()
		if s.borrowed {
			s.h = 0
		}
		if err := release(s.d, &s.h, s.d.fn.StreamDestroy); err != nil {
			return err
		}
	}
	if err := release(s.d, &s.done, s.d.fn.EventDestroy); err != nil {
		return err
	}
	return s.stage.destroy(s.d)
}
