package cpu

import (
	"math"
	"math/rand"
	"testing"
	"unsafe"
)

// available returns every level that this processor has.
func available() []level {
	var ls []level
	for l := generic; l <= highest(); l++ {
		ls = append(ls, l)
	}
	return ls
}

// random returns n numbers in [-1, 1), the same for the same n.
func random[T Float](n int) []T {
	r := rand.New(rand.NewSource(int64(n) + 1))
	x := make([]T, n)
	for i := range x {
		x[i] = T(r.Float64()*2 - 1)
	}
	return x
}

// guard is the number of elements on either side of a guarded slice.
const guard = 64

// A guarded slice lies between elements that nobody may write. It starts as NaN.
type guarded[T Float] struct {
	all, s []T
}

func newGuarded[T Float](n int) guarded[T] {
	all := make([]T, n+2*guard)
	for i := range all {
		all[i] = T(math.NaN())
	}
	return guarded[T]{all, all[guard : guard+n : guard+n]}
}

// intact reports whether the guards are still NaN.
func (g guarded[T]) intact() bool {
	for i, v := range g.all {
		if (i < guard || i >= guard+len(g.s)) && v == v {
			return false
		}
	}
	return true
}

// eps is the distance from 1 to the next number of T.
func eps[T Float]() float64 {
	var z T
	if unsafe.Sizeof(z) == 4 {
		return 0x1p-23
	}
	return 0x1p-52
}

// near reports an error unless got is within tol of want, or both are NaN, or both the same infinity.
func near[T Float](t *testing.T, what string, got T, want, tol float64) bool {
	t.Helper()
	g := float64(got)
	if g == want || math.IsNaN(g) && math.IsNaN(want) || math.Abs(g-want) <= tol {
		return true
	}
	t.Errorf("%s: got %v, want %v", what, g, want)
	return false
}

// run runs k on a team of the given number of workers with poisoned work memory.
func run(t testing.TB, k *Kernel, workers int) {
	t.Helper()
	team := NewTeam(workers)
	b := AlignedBytes(k.WorkBytes(workers))
	for i := range b {
		b[i] = 0xff
	}
	mem := new(Buf)
	holdBytes(mem, b)
	if err := team.Run(k, mem); err != nil {
		t.Fatal(err)
	}
}

func holdBytes(b *Buf, s []byte) { b.Set(unsafe.Pointer(unsafe.SliceData(s)), len(s)) }

// tileAt is Tile at level l.
func tileAt[T Float](l level, m, n, k int, a []T, ars, acs int, b []T, brs int, c []T, crs int, add bool) {
	var s []T
	if add {
		s = c
	}
	tile(l, m, n, k, a, ars, acs, b, brs, c, crs, s, crs)
}
