package testutil

import (
	"testing"
	"unsafe"
)

// Elem is an element type of buffers under test.
type Elem interface{ float32 | float64 | int32 }

// poison is the pattern that Poison writes: a NaN of float32 and, written twice, of float64, with a payload that
// arithmetic does not produce, and a large int32.
const poison = 0x7ffd_ead1

// words returns the memory of x as words of 32 bits.
func words[T Elem](x []T) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*int(unsafe.Sizeof(*new(T)))/4)
}

// Poison fills x with a value that no right result has: NaN, or a large number in int32. A kernel must write every
// element of its outputs, and must not read one before.
func Poison[T Elem](x []T) {
	w := words(x)
	if len(w) > 0 {
		w[0] = poison
	}
	for done := 1; done < len(w); done *= 2 {
		copy(w[done:], w[:done])
	}
}

// Poisoned returns the index of the first element of x that Poison wrote and nothing has overwritten, or -1.
func Poisoned[T Elem](x []T) int {
	for i := range x {
		if words(x[i : i+1])[0] == poison {
			return i
		}
	}
	return -1
}

// guardLen is the number of guard elements on either side of a guarded slice.
const guardLen = 64

// Guarded returns a slice of n poisoned elements between guard elements, and a function that fails the test if a guard
// was overwritten. what is the array's name in the message. The guards are poisoned too, so that a read outside of the
// slice shows in the results. The slice has no spare capacity.
func Guarded[T Elem](n int) (x []T, check func(t testing.TB, what string)) {
	whole := make([]T, n+2*guardLen)
	Poison(whole)
	check = func(t testing.TB, what string) {
		t.Helper()
		for i, v := range whole {
			if inside := i >= guardLen && i < guardLen+n; !inside && Poisoned(whole[i:i+1]) < 0 {
				t.Errorf("%s: wrote %v at index %d of %d", what, v, i-guardLen, n)
				return
			}
		}
	}
	return whole[guardLen : guardLen+n : guardLen+n], check
}
