package driver

// stageBytes is the size of each half of a stream's pinned memory.
const stageBytes = 4 << 20

// stage is the pinned memory of a stream through which copies go whose host side is not pinned. It has two halves: one is
// filled by the host while the device reads the other, or the other way round. The first use allocates it.
type stage struct {
	halves [2]half
	now    int // the half in use
}

type half struct {
	mem  []byte // pinned
	left Handle // of an event, recorded behind the copies of the half when the other one is taken
	used int
	outs []out
}

// out is a download: its bytes are pinned memory, in the half, until its copy has ended.
type out struct{ dst, pinned []byte }

// Upload enqueues a copy of src to the device. src may change as soon as Upload returns. It waits only while the device is
// more than two halves of pinned memory behind.
func (s *Stream) Upload(dst DevicePtr, src []byte) error {
	return s.staged(&s.copyIn, len(src), func(h *half, done, n int) error {
		to := h.mem[h.used:][:n]
		copy(to, src[done:])
		return s.call(s.d.fn.MemcpyHtoDAsync, uintptr(dst)+uintptr(done), address(to), uintptr(n), s.h)
	})
}

// Download enqueues a copy of the device's memory to dst, which holds it after Synchronize and may be written earlier.
func (s *Stream) Download(dst []byte, src DevicePtr) error {
	return s.staged(&s.copyOut, len(dst), func(h *half, done, n int) error {
		from := h.mem[h.used:][:n]
		err := s.call(s.d.fn.MemcpyDtoHAsync, address(from), uintptr(src)+uintptr(done), uintptr(n), s.h)
		if err == nil {
			h.outs = append(h.outs, out{dst[done:], from})
		}
		return err
	})
}

// staged calls move for pieces of a copy that fit into the stage: n bytes of it, of which done have been enqueued.
func (s *Stream) staged(l *Launched, bytes int, move func(h *half, done, n int) error) error {
	if bytes == 0 {
		return nil
	}
	return s.do(l.Op, func() error {
		if s.capture != nil {
			return errCapturing
		}
		if err := s.stage.make(s.d); err != nil {
			return err
		}
		for done := 0; done < bytes; {
			h, err := s.half()
			if err != nil {
				return err
			}
			n := min(bytes-done, stageBytes-h.used)
			if err := move(h, done, n); err != nil {
				return err
			}
			h.used = min(stageBytes, (h.used+n+Alignment-1)&^(Alignment-1))
			done += n
		}
		return s.enqueued(l)
	})
}

// half returns a half with room: when the one in use is full, the other one, as soon as the device has done with it.
func (s *Stream) half() (*half, error) {
	st := &s.stage
	h := &st.halves[st.now]
	if h.used < stageBytes {
		return h, nil
	}
	if err := s.call(s.d.fn.EventRecord, h.left, s.h); err != nil {
		return nil, err
	}
	h = &st.halves[1-st.now]
	if h.used > 0 {
		if err := s.call(s.d.fn.EventSynchronize, h.left); err != nil {
			return nil, err
		}
		h.ended()
	}
	st.now = 1 - st.now
	return h, nil
}

// make allocates what is missing.
func (st *stage) make(d *Device) (err error) {
	for i := range st.halves {
		h := &st.halves[i]
		if h.mem == nil {
			h.mem, err = d.pin(stageBytes)
		}
		if err == nil && h.left == 0 {
			err = d.event(&h.left, false)
		}
		if err != nil {
			return err
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
		copy(o.dst, o.pinned)
	}
	clear(h.outs) // the destinations are the caller's
	h.outs, h.used = h.outs[:0], 0
}

func (st *stage) destroy(d *Device) error {
	for i := range st.halves {
		h := &st.halves[i]
		if err := release(d, &h.left, d.fn.EventDestroy); err != nil {
			return err
		}
		if err := d.unpin(&h.mem); err != nil {
			return err
		}
	}
	return nil
}
