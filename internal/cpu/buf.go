package cpu

import "unsafe"

// Buf is a cell that holds the memory of one operand. A kernel is bound to cells once. The memory of a cell may change
// between runs: a kernel reads its cells anew in each run. The cell does not own the memory, which is not nil while a
// kernel runs, unless the operand has no elements.
type Buf struct {
	ptr   unsafe.Pointer
	bytes int
}

// Set makes b hold the given number of bytes at ptr, which must be aligned to 8 bytes.
func (b *Buf) Set(ptr unsafe.Pointer, bytes int) { b.ptr, b.bytes = ptr, bytes }

// Pointer returns the address of the memory that b holds.
func (b *Buf) Pointer() unsafe.Pointer { return b.ptr }

// Bytes returns the size of the memory that b holds, in bytes.
func (b *Buf) Bytes() int { return b.bytes }

// Slice returns the memory of b as a slice of T, without allocating. It is nil if b holds no bytes.
func Slice[T Elem](b *Buf) []T {
	if b.bytes == 0 {
		return nil
	}
	return unsafe.Slice((*T)(b.ptr), b.bytes/sizeOf[T]())
}

// Hold makes b hold the memory of s.
func Hold[T Elem](b *Buf, s []T) {
	b.Set(unsafe.Pointer(unsafe.SliceData(s)), len(s)*sizeOf[T]())
}

// NewBuf returns a cell that holds the memory of s.
func NewBuf[T Elem](s []T) *Buf {
	b := new(Buf)
	Hold(b, s)
	return b
}

// AlignedBytes returns n zero bytes that begin at a cache line.
func AlignedBytes(n int) []byte {
	b := make([]byte, n+cacheLine)
	off := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (cacheLine - 1))
	return b[off : off+n : off+n]
}

// Float is an element type that the kernels compute in.
type Float interface{ float32 | float64 }

// Elem is an element type that a Buf can hold.
type Elem interface {
	float32 | float64 | int32 | int | byte | BFloat16
}

// sizeOf returns the size of an element of T in bytes.
func sizeOf[T Elem]() int {
	var z T
	return int(unsafe.Sizeof(z))
}

// isFloat32 reports whether T is float32.
func isFloat32[T Float]() bool { return sizeOf[T]() == 4 }

// ptr32, ptr64 and bytePtr return the address of s for the assembly, which has no type parameters. The elements of s
// are float32 for ptr32 and float64 for ptr64.
func ptr32[T Float](s []T) *float32 { return (*float32)(unsafe.Pointer(unsafe.SliceData(s))) }
func ptr64[T Float](s []T) *float64 { return (*float64)(unsafe.Pointer(unsafe.SliceData(s))) }
func bytePtr[T Float](s []T) *byte  { return (*byte)(unsafe.Pointer(unsafe.SliceData(s))) }
