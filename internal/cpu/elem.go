package cpu

import "unsafe"

// Float is an element type that the kernels compute in.
type Float interface{ float32 | float64 }

// Elem is an element type that a Buf can hold.
type Elem interface {
	float32 | float64 | int32 | int | byte
}

// single reports whether T is float32.
func single[T Float]() bool {
	var z T
	return unsafe.Sizeof(z) == 4
}

// f32 and f64 return the memory of s, whose elements are float32 or float64.
func f32[T Float](s []T) *float32 { return (*float32)(unsafe.Pointer(unsafe.SliceData(s))) }
func f64[T Float](s []T) *float64 { return (*float64)(unsafe.Pointer(unsafe.SliceData(s))) }

func bytes[T Float](s []T) *byte { return (*byte)(unsafe.Pointer(unsafe.SliceData(s))) }
