package driver

import (
	"errors"
	"fmt"
)

// Stream is a queue of a device: what is enqueued runs in order, and in no order with what is in other streams. It belongs
// to one goroutine at a time.
type Stream struct {
	d        *Device
	h        StreamHandle // 0 once closed
	borrowed bool         // h is not ours to destroy
	done     EventHandle  // to sleep until it comes
	pins     int
	trail    trail

	capture   *Replay // what is being recorded, or nil
	abandoned bool    // the capture has failed: to be dropped before anything else

	stage                            stage
	copyIn, copyOut, copyOn, setting *Launched // what copies and fills are remembered as
}

// NewStream returns a new stream.
func (d *Device) NewStream() (*Stream, error) {
	s, err := d.newStream("stream", 0)
	return s, d.failed("new stream", err)
}

// BorrowStream returns a Stream on a queue that a library beside this package has made in the device's context. Close waits
// for what is under way and leaves the queue to its owner, who destroys it after that. What the owner enqueues meanwhile
// runs in order with what is enqueued here; a Fault knows nothing of it.
func (d *Device) BorrowStream(h StreamHandle) (*Stream, error) {
	if h == 0 {
		return nil, d.failed("borrow stream", errors.New("got the default stream, which has no queue of its own"))
	}
	s, err := d.newStream("borrowed stream", h)
	return s, d.failed("borrow stream", err)
}

// newStream returns a stream on queue h, or on a new one.
func (d *Device) newStream(name string, h StreamHandle) (*Stream, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	borrowed := h != 0
	if !borrowed {
		var r Result
		h, r = d.drv.StreamCreate(StreamNonBlocking)
		if err := d.check(nil, "cuStreamCreate", r); err != nil {
			return nil, err
		}
	}
	s := &Stream{d: d, h: h, borrowed: borrowed, copyIn: &Launched{Op: "copy to the device"}, copyOut: &Launched{Op: "copy to the host"},
		copyOn: &Launched{Op: "copy on the device"}, setting: &Launched{Op: "fill"}}
	d.adopt(s, kind{name, 0})
	d.mu.Lock()
	d.streams[s] = true
	d.mu.Unlock()
	done, r := d.drv.EventCreate(EventBlockingSync | EventDisableTiming)
	if err := d.check(nil, "cuEventCreate", r); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.done = done
	return s, nil
}

// Device returns the stream's device.
func (s *Stream) Device() *Device { return s.d }

// Handle returns the driver's stream, for libraries that are called beside this package.
func (s *Stream) Handle() StreamHandle { return s.h }

// Pin keeps the goroutine on its thread, with the device's context current, until Unpin: calls of s between make one call of
// the driver less, which is about half of what a launch costs this package. They must come from the same goroutine, which must not call another device meanwhile. Pins nest.
func (s *Stream) Pin() error {
	if err := s.d.enter(); err != nil {
		return s.d.failed("pin", err)
	}
	s.pins++
	return nil
}

// Unpin undoes one Pin.
func (s *Stream) Unpin() {
	if s.pins > 0 {
		s.pins--
		s.d.leave()
	}
}

// enter is Device.enter for the calls of a stream.
func (s *Stream) enter() error {
	if s.h == 0 {
		return fmt.Errorf("the stream is %w", errClosed)
	}
	if s.pins == 0 {
		if err := s.d.enter(); err != nil {
			return err
		}
	} else if s.d.closed.Load() {
		return errClosed
	} else if err := s.d.Err(); err != nil {
		return err
	}
	if s.abandoned {
		if err := s.drop(); err != nil {
			s.leave()
			return err
		}
	}
	return nil
}

func (s *Stream) leave() {
	if s.pins == 0 {
		s.d.leave()
	}
}

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

// wait waits until all that was enqueued has ended.
func (s *Stream) wait() error {
	mark, drv := s.trail.mark(), s.d.drv
	if s.d.spin || s.done == 0 {
		if err := s.d.check(s, "cuStreamSynchronize", drv.StreamSynchronize(s.h)); err != nil {
			return err
		}
	} else {
		if err := s.d.check(s, "cuEventRecord", drv.EventRecord(s.done, s.h)); err != nil {
			return err
		}
		if err := s.d.check(s, "cuEventSynchronize", drv.EventSynchronize(s.done)); err != nil {
			return err
		}
	}
	s.trail.end(mark)
	return nil
}

// Synchronize waits until all that was enqueued has ended. Then what has been downloaded is there. An error is that of the
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

// do calls f between enter and leave.
func (s *Stream) do(what string, f func() error) error {
	err := s.enter()
	if err == nil {
		err = f()
		s.leave()
	}
	return s.d.failed(what, err)
}

// CopyIn enqueues a copy of bytes at offset of src to the device. src must stay as it is until the copy has ended.
func (s *Stream) CopyIn(dst DevicePtr, src *Host, offset, bytes int) error {
	if bytes == 0 {
		return nil
	}
	p, err := src.at(offset, bytes)
	if err != nil {
		return s.d.failed(s.copyIn.Op, err)
	}
	return s.enqueue(s.copyIn, "cuMemcpyHtoDAsync", bytes, func() Result { return s.d.drv.MemcpyHtoDAsync(dst, p, bytes, s.h) })
}

// CopyOut enqueues a copy of bytes of the device to dst at offset. They are there when the copy has ended.
func (s *Stream) CopyOut(dst *Host, offset int, src DevicePtr, bytes int) error {
	if bytes == 0 {
		return nil
	}
	p, err := dst.at(offset, bytes)
	if err != nil {
		return s.d.failed(s.copyOut.Op, err)
	}
	return s.enqueue(s.copyOut, "cuMemcpyDtoHAsync", bytes, func() Result { return s.d.drv.MemcpyDtoHAsync(p, src, bytes, s.h) })
}

// Copy enqueues a copy within the device.
func (s *Stream) Copy(dst, src DevicePtr, bytes int) error {
	return s.enqueue(s.copyOn, "cuMemcpyDtoDAsync", bytes, func() Result { return s.d.drv.MemcpyDtoDAsync(dst, src, bytes, s.h) })
}

// Fill8 enqueues setting bytes to value.
func (s *Stream) Fill8(dst DevicePtr, value uint8, bytes int) error {
	return s.enqueue(s.setting, "cuMemsetD8Async", bytes, func() Result { return s.d.drv.MemsetD8Async(dst, value, bytes, s.h) })
}

// Fill32 enqueues setting a number of words to value. dst is aligned to 4 bytes.
func (s *Stream) Fill32(dst DevicePtr, value uint32, words int) error {
	return s.enqueue(s.setting, "cuMemsetD32Async", words, func() Result { return s.d.drv.MemsetD32Async(dst, value, words, s.h) })
}

// enqueue makes a call of the driver that is remembered as l. n elements are no work at 0 and an error below.
func (s *Stream) enqueue(l *Launched, call string, n int, f func() Result) error {
	if n == 0 {
		return nil
	}
	if n < 0 {
		return s.d.failed(l.Op, fmt.Errorf("got a length of %d, want 0 or more", n))
	}
	err := s.enter()
	if err == nil {
		if err = s.d.check(s, call, f()); err == nil {
			err = s.enqueued(l)
		}
		s.leave()
	}
	return s.d.failed(l.Op, err)
}

// Enqueue calls f, which enqueues work in the stream by a library that is called beside this package, and remembers that
// work as l. f runs with the device's context current, on a thread that it keeps for the time of the call; it may be called
// while a capture is under way. Enqueue allocates nothing by itself. The error is that of f, or the *Fault of earlier work
// that has made f fail.
func (s *Stream) Enqueue(l *Launched, f func(StreamHandle) error) error {
	if l == nil || f == nil {
		return s.d.failed("enqueue", errors.New("got no launch, or nothing to call"))
	}
	err := s.enter()
	if err != nil {
		return s.d.failed(l.Op, err)
	}
	if err = f(s.h); err == nil {
		err = s.enqueued(l)
	} else if r := s.d.drv.EventQuery(s.done); r.fault() { // libraries have error codes of their own
		err = s.d.check(s, "cuEventQuery", r)
	}
	s.leave()
	return s.d.failed(l.Op, err)
}

// Close waits for what is under way and frees the stream, or gives back one that is borrowed. A capture under way is dropped.
func (s *Stream) Close() error { return s.d.free(s, "close stream") }

func (s *Stream) destroy() error {
	if s.capture != nil {
		if err := s.drop(); err != nil {
			return err
		}
	}
	drv := s.d.drv
	if s.h != 0 {
		mark := s.trail.mark()
		if err := s.d.check(s, "cuStreamSynchronize", drv.StreamSynchronize(s.h)); err != nil {
			return err
		}
		s.trail.end(mark)
		s.stage.ended()
		if !s.borrowed {
			if err := s.d.check(s, "cuStreamDestroy", drv.StreamDestroy(s.h)); err != nil {
				return err
			}
		}
		s.h = 0
	}
	if s.done != 0 {
		if err := s.d.check(s, "cuEventDestroy", drv.EventDestroy(s.done)); err != nil {
			return err
		}
		s.done = 0
	}
	return s.stage.destroy(s.d)
}
