package cpu

import "unsafe"

// Float is an element type that the kernels compute in.
type Float interface{ float32 | float64 }

// Elem is an element type that a Buf can hold.
type Elem interface {
	float32 | float64 | int32 | int | byte
}

// Buf is a cell that holds the memory of one operand. A kernel is bound to cells once; what a cell points to may be
// changed between runs, and a kernel reads its cells anew in each run. The memory is not owned and is never nil while
// a kernel runs, unless it has no elements.
type Buf struct {
	ptr   unsafe.Pointer
	bytes int
}

// Set makes b hold the given number of bytes at ptr, which must be aligned to 8 bytes.
func (b *Buf) Set(ptr unsafe.Pointer, bytes int) { b.ptr, b.bytes = ptr, bytes }

// Pointer returns the memory that b holds.
func (b *Buf) Pointer() unsafe.Pointer { return b.ptr }

// Bytes returns the number of bytes that b holds.
func (b *Buf) Bytes() int { return b.bytes }

// Slice returns the memory of b as a slice of T, without allocating.
func Slice[T Elem](b *Buf) []T {
	var z T
	if b.bytes == 0 {
		return nil
	}
	return unsafe.Slice((*T)(b.ptr), b.bytes/int(unsafe.Sizeof(z)))
}

// Hold makes b hold s.
func Hold[T Elem](b *Buf, s []T) {
	var z T
	b.Set(unsafe.Pointer(unsafe.SliceData(s)), len(s)*int(unsafe.Sizeof(z)))
}

// NewBuf returns a cell that holds s.
func NewBuf[T Elem](s []T) *Buf {
	b := new(Buf)
	Hold(b, s)
	return b
}
