package cpu

import "unsafe"

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
