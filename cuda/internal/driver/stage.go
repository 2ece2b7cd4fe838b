package driver

import (
	"sync"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
)

// stageBytes is the size of each half of a stream's pinned memory.
const stageBytes = 4 << 20

// stage is the pinned memory of a stream. Copies from or to unpinned host memory go through it. The first copy
// allocates it. It has two halves: the host uses one while the device may still use the other.
type stage struct {
	mem       Handle  // its address
	half      int     // the one in use
	used      int     // bytes in use of that half
	full      [2]mark // recorded after the copies of a full half
	downloads []download
}

// download is a copy to the host: the device copies to pinned, and stage.ended copies from there to dst.
type download struct{ dst, pinned []byte }

// Upload enqueues a copy of src to the device. src may change as soon as Upload returns. It waits only while the pinned
// memory has no room.
func (s *Stream) Upload(dst DevicePtr, src []byte) error {
	return s.staged(copyIn, len(src), func(pinned []byte, done int) error {
		copy(pinned, src[done:])
		return s.d.call(s.d.fn.MemcpyHtoDAsync, uintptr(dst)+uintptr(done), address(pinned), uintptr(len(pinned)), s.h)
	})
}

// Download enqueues a copy of device memory to dst. dst holds the data after Synchronize and may be written earlier.
func (s *Stream) Download(dst []byte, src DevicePtr) error {
	return s.staged(copyOut, len(dst), func(pinned []byte, done int) error {
		err := s.d.call(s.d.fn.MemcpyDtoHAsync, address(pinned), uintptr(src)+uintptr(done), uintptr(len(pinned)), s.h)
		if err == nil {
			s.stage.downloads = append(s.stage.downloads, download{dst[done:], pinned})
		}
		return err
	})
}

// staged cuts a copy into pieces that fit the pinned memory and calls move for each. done is the number of bytes before
// the piece.
func (s *Stream) staged(l *Launched, bytes int, move func(pinned []byte, done int) error) error {
	if bytes == 0 {
		return nil
	}
	return s.doUncaptured(l, &s.owned, func() error {
		for done := 0; done < bytes; {
			room, err := s.freeRoom()
			if err != nil {
				return err
			}
			n := min(bytes-done, len(room))
			if err := move(room[:n], done); err != nil {
				return err
			}
			s.stage.used = min(stageBytes, (s.stage.used+n+Alignment-1)&^(Alignment-1))
			done += n
		}
		return s.remember(l)
	})
}

// freeRoom returns the free rest of the half in use. If that half is full, it waits until the device no longer uses the
// other half and returns that.
func (s *Stream) freeRoom() ([]byte, error) {
	st := &s.stage
	if st.mem == 0 {
		if err := s.d.allocate(&st.mem, 2*stageBytes, true); err != nil {
			return nil, err
		}
	}
	if st.used == stageBytes && len(st.downloads) > 0 {
		if err := s.wait(); err != nil {
			return nil, err
		}
	}
	if st.used == stageBytes {
		if err := st.full[st.half].record(); err != nil {
			return nil, err
		}
		if err := st.full[1-st.half].wait(); err != nil {
			return nil, err
		}
		st.half, st.used = 1-st.half, 0
	}
	return unsafe.Slice(sharedlib.PointerTo[byte](st.mem), 2*stageBytes)[st.half*stageBytes:][st.used:stageBytes], nil
}

// ended finishes the downloads once all copies of the device have ended.
func (st *stage) ended() {
	for _, o := range st.downloads {
		copyTogether(o.dst, o.pinned)
	}
	clear(st.downloads) // so that they do not keep the caller's memory alive
	st.downloads, st.used = st.downloads[:0], 0
}

// shareBytes is what one goroutine copies of more.
const shareBytes = 512 << 10

// copyTogether is copy for as many bytes of dst as src has, by several goroutines if these are many.
func copyTogether(dst, src []byte) {
	if len(src) < 2*shareBytes {
		copy(dst, src)
		return
	}
	var all sync.WaitGroup
	for at := 0; at < len(src); at += shareBytes {
		all.Go(func() { copy(dst[at:], src[at:min(at+shareBytes, len(src))]) })
	}
	all.Wait()
}

func address(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }
