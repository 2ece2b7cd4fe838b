package driver

import "unsafe"

// stageBytes is the size of each half of a stream's pinned memory.
const stageBytes = 4 << 20

// stage is the pinned memory of a stream through which copies go whose host side is not pinned. It has two halves: one is
// filled by the host while the device reads the other, or the other way round. The first use allocates it.
type stage struct {
	halves [2]half
	now    int // the half in use
}

type half struct {
	ptr  unsafe.Pointer
	left EventHandle // comes when all copies of the half have ended; recorded when the half is left
	used int
	outs []out
}

// out is a download: its bytes lie in the half when its copy has ended.
type out struct {
	dst []byte
	at  int
}

// Upload enqueues a copy of src to the device. src may change as soon as Upload returns. It waits only while the device is
// more than two halves of pinned memory behind.
func (s *Stream) Upload(dst DevicePtr, src []byte) error {
	return s.staged(s.copyIn, len(src), func(h *half, done, n int) error {
		p := unsafe.Add(h.ptr, h.used)
		copy(unsafe.Slice((*byte)(p), n), src[done:])
		return s.d.check(s, "cuMemcpyHtoDAsync", s.d.drv.MemcpyHtoDAsync(dst+DevicePtr(done), p, n, s.h))
	})
}

// Download enqueues a copy of the device's memory to dst, which holds it after Synchronize and may be written earlier.
func (s *Stream) Download(dst []byte, src DevicePtr) error {
	return s.staged(s.copyOut, len(dst), func(h *half, done, n int) error {
		p := unsafe.Add(h.ptr, h.used)
		err := s.d.check(s, "cuMemcpyDtoHAsync", s.d.drv.MemcpyDtoHAsync(p, src+DevicePtr(done), n, s.h))
		if err == nil {
			h.outs = append(h.outs, out{dst[done : done+n], h.used})
		}
		return err
	})
}

// staged calls move for pieces of a copy that fit into the stage: n bytes of it, of which done have been enqueued.
func (s *Stream) staged(l *Launched, bytes int, move func(h *half, done, n int) error) error {
	if bytes == 0 {
		return nil
	}
	err := s.enter()
	if err != nil {
		return s.d.failed(l.Op, err)
	}
	defer s.leave()
	if s.capture != nil {
		return s.d.failed(l.Op, errCapturing)
	}
	if err := s.stage.make(s.d); err != nil {
		return s.d.failed(l.Op, err)
	}
	for done := 0; done < bytes; {
		h := &s.stage.halves[s.stage.now]
		if h.used == stageBytes {
			if h, err = s.turn(); err != nil {
				return s.d.failed(l.Op, err)
			}
		}
		n := min(bytes-done, stageBytes-h.used)
		if err := move(h, done, n); err != nil {
			return s.d.failed(l.Op, err)
		}
		h.used = min(stageBytes, (h.used+n+Alignment-1)&^(Alignment-1))
		done += n
	}
	return s.enqueued(l)
}

// turn leaves the half in use for the other one, as soon as the device has done with that.
func (s *Stream) turn() (*half, error) {
	drv, st := s.d.drv, &s.stage
	if err := s.d.check(s, "cuEventRecord", drv.EventRecord(st.halves[st.now].left, s.h)); err != nil {
		return nil, err
	}
	h := &st.halves[1-st.now]
	if h.used > 0 {
		if err := s.d.check(s, "cuEventSynchronize", drv.EventSynchronize(h.left)); err != nil {
			return nil, err
		}
		h.ended()
	}
	st.now = 1 - st.now
	return h, nil
}

// make allocates what is not there yet.
func (st *stage) make(d *Device) error {
	for i := range st.halves {
		h := &st.halves[i]
		if h.ptr == nil {
			p, err := d.pin(stageBytes)
			if err != nil {
				return err
			}
			h.ptr = p
		}
		if h.left == 0 {
			e, r := d.drv.EventCreate(EventBlockingSync | EventDisableTiming)
			if err := d.check(nil, "cuEventCreate", r); err != nil {
				return err
			}
			h.left = e
		}
	}
	return nil
}

// ended says that all copies have ended.
func (st *stage) ended() {
	for i := range st.halves {
		st.halves[i].ended()
	}
}

func (h *half) ended() {
	for _, o := range h.outs {
		copy(o.dst, unsafe.Slice((*byte)(unsafe.Add(h.ptr, o.at)), len(o.dst)))
	}
	clear(h.outs) // the destinations are the caller's
	h.outs, h.used = h.outs[:0], 0
}

func (st *stage) destroy(d *Device) error {
	for i := range st.halves {
		h := &st.halves[i]
		if h.left != 0 {
			if err := d.check(nil, "cuEventDestroy", d.drv.EventDestroy(h.left)); err != nil {
				return err
			}
			h.left = 0
		}
		if h.ptr != nil {
			if err := d.check(nil, "cuMemFreeHost", d.drv.MemFreeHost(h.ptr)); err != nil {
				return err
			}
			h.ptr = nil
		}
	}
	return nil
}
