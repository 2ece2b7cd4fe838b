package kernels

import (
	"fmt"
	"unsafe"
)

// Type is the storage type of an op's elements. Sums are float32, or wider, in all of them.
type Type int32

// Storage types; the values are those of common.cuh.
const (
	F32  Type = iota // float
	BF16             // __nv_bfloat16
	F16              // __half
)

// suffixes end the names of kernels.
var suffixes = [...]string{F32: "_f32", BF16: "_bf16", F16: "_f16"}

// Bytes returns the size of an element.
func (t Type) Bytes() int {
	if t == F32 {
		return 4
	}
	return 2
}

// lanes returns the number of elements in 16 bytes.
func (t Type) lanes() int64 { return int64(16 / t.Bytes()) }

func (t Type) String() string {
	if t < 0 || int(t) >= len(suffixes) {
		return fmt.Sprintf("Type(%d)", int32(t))
	}
	return suffixes[t][1:]
}

// Ptr is an address in the device's memory.
type Ptr uint64

// plus returns the address of a place bytes further.
func (p Ptr) plus(bytes int64) Ptr { return p + Ptr(bytes) }

// Dim is the size of a grid, in blocks, or of a block, in threads.
type Dim struct{ X, Y, Z int }

// maxParams is the size of the largest argument, in bytes.
const maxParams = 320

// Launch is one launch of a kernel. It is a value: nothing in it changes when another one is made.
type Launch struct {
	Kernel string // symbol
	Grid   Dim
	Block  Dim
	Shared int // bytes of dynamic shared memory

	size   int
	params [maxParams / 8]uint64
}

// Params returns the bytes of the kernel's one argument, a struct. They belong to the launch.
func (l *Launch) Params() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&l.params[0])), l.size)
}

// launch returns a launch with a copy of params, whose layout is that of C: fields of 8 bytes before those of 4.
func launch[P any](kernel string, grid, block Dim, shared int, params *P) Launch {
	l := Launch{Kernel: kernel, Grid: grid, Block: block, Shared: shared, size: int(unsafe.Sizeof(*params))}
	copy(l.Params(), unsafe.Slice((*byte)(unsafe.Pointer(params)), l.size))
	return l
}

// Unsupported is the error of sizes or types that the kernels of an op do not take.
type Unsupported struct {
	Op     string // such as "rms norm"
	Reason string
}

func (e *Unsupported) Error() string { return "kernels: " + e.Op + ": " + e.Reason }

func unsupported(op, format string, args ...any) error {
	return &Unsupported{op, fmt.Sprintf(format, args...)}
}

// size is a size of an op with its name.
type size struct {
	name string
	n    int64
}

// maxElements bounds the product of an op's sizes, so that offsets in bytes fit 64 bits.
const maxElements = 1 << 56

// check refuses unknown types, sizes that are not positive, and products of them that are too large.
func check(op string, t Type, sizes ...size) error {
	if t < F32 || t > F16 {
		return unsupported(op, "storage type is %v, want %v, %v or %v", t, F32, BF16, F16)
	}
	product := int64(1)
	for _, s := range sizes {
		if s.n < 1 {
			return unsupported(op, "%s is %d, want at least 1", s.name, s.n)
		}
		if product > maxElements/s.n {
			return unsupported(op, "more than 2^56 elements, with %d along %s", s.n, s.name)
		}
		product *= s.n
	}
	return nil
}

// pieces is the number of parts of at most size that n is cut into.
func pieces(n, size int64) int64 { return (n + size - 1) / size }

// align rounds bytes up to a place that every kernel takes.
func align(bytes int64) int64 { return pieces(bytes, 256) * 256 }

// maxBlocks bounds a grid whose kernel goes on with what is left.
const maxBlocks = 1 << 16

// blocks returns the grid for n pieces of work, where the kernel loops over what is beyond the grid.
func blocks(n int64) Dim { return Dim{int(min(max(n, 1), maxBlocks)), 1, 1} }

// threads is the block of elementwise kernels.
var threads = Dim{256, 1, 1}

// elements returns the grid of an elementwise kernel over n elements of a type.
func elements(t Type, n int64) Dim { return blocks(pieces(n, 256*t.lanes())) }

// rowThreads returns the block of a kernel in which a group of threads owns a row of the given length: 8 warps of a row each,
// or one row for all.
func rowThreads(cols int64) Dim {
	switch {
	case cols <= 1024:
		return Dim{32, 8, 1}
	case cols <= 16384:
		return Dim{256, 1, 1}
	}
	return Dim{512, 1, 1}
}

// rowBlocks is the grid for rowThreads.
func rowBlocks(rows int64, block Dim) Dim { return blocks(pieces(rows, int64(block.Y))) }
