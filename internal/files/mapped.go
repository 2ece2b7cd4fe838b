package files

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// Mapped is a file of which parts are read, on unix by mapping it into memory. It is not read whole.
type Mapped struct {
	file *os.File
	size int64
	data []byte // the whole file; nil if it is not mapped
}

// OpenMapped opens a file as Open does.
func OpenMapped(path string) (*Mapped, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Mapped{file: f, size: info.Size(), data: mapFile(f, info.Size())}, nil
}

// Size returns the number of bytes that the file had when it was opened.
func (m *Mapped) Size() int64 { return m.size }

// ReadAt is that of the file.
func (m *Mapped) ReadAt(p []byte, off int64) (int, error) { return m.file.ReadAt(p, off) }

// Close closes the file. No reading may be under way.
func (m *Mapped) Close() error {
	if m.file == nil {
		return nil
	}
	err := errors.Join(unmapFile(m.data), m.file.Close())
	*m = Mapped{}
	return err
}

// pieceBytes is the size of the parts that Pieces hands out. It is small beside a cache and large beside their cost.
const pieceBytes = 64 << 10

// Pieces calls use on all cores, in any order and at the same time, with parts of the n bytes from offset off: part
// begins at byte at of them, and at and the length of a part are multiples of unit if n is one. A part is valid during
// the call. If the file has become shorter, the error is io.ErrUnexpectedEOF; after Close it is os.ErrClosed.
func (m *Mapped) Pieces(off, n int64, unit int, use func(at int64, part []byte)) error {
	switch {
	case m.file == nil:
		return os.ErrClosed
	case off < 0 || n < 0 || off > m.size-n:
		return fmt.Errorf("%d bytes at %d of %d: %w", n, off, m.size, io.ErrUnexpectedEOF)
	}
	piece := int64(unit * max(1, pieceBytes/unit))
	pieces := (n + piece - 1) / piece
	errs := make([]error, min(pieces, int64(runtime.GOMAXPROCS(0))))
	var next atomic.Int64
	var workers sync.WaitGroup
	for i := range errs {
		workers.Go(func() {
			for p := next.Add(1) - 1; p < pieces && errs[i] == nil; p = next.Add(1) - 1 {
				at := p * piece
				errs[i] = m.piece(off+at, min(piece, n-at), func(part []byte) { use(at, part) })
			}
		})
	}
	workers.Wait()
	return cmp.Or(errs...)
}

// piece calls use with n bytes from offset off. It changes debug.SetPanicOnFault for its goroutine.
func (m *Mapped) piece(off, n int64, use func(part []byte)) (err error) {
	if m.data == nil {
		part := make([]byte, n)
		if _, err := m.file.ReadAt(part, off); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		use(part)
		return nil
	}
	// A page that the file no longer has is a fault, which would end the process.
	debug.SetPanicOnFault(true)
	defer func() {
		if r := recover(); r != nil {
			if _, isFault := r.(interface{ Addr() uintptr }); !isFault {
				panic(r)
			}
			err = fmt.Errorf("the file has become shorter: %w", io.ErrUnexpectedEOF)
		}
	}()
	use(m.data[off : off+n])
	return nil
}
