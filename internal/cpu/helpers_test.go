package cpu

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// levels yields every level that this processor has. While a level is yielded, it is the level in use.
func levels(yield func(level) bool) {
	defer func(l level) { levelInUse = l }(levelInUse)
	for _, levelInUse = range processorLevels() {
		if !yield(levelInUse) {
			return
		}
	}
}

// onLevels runs test32 and test64 at every level.
func onLevels(t *testing.T, test32, test64 func(*testing.T)) {
	for l := range levels {
		t.Run(l.String()+"/float32", test32)
		t.Run(l.String()+"/float64", test64)
	}
}

// random returns n numbers in [-1, 1), which depend only on n.
func random[T Float](n int) []T {
	r := rand.New(rand.NewPCG(uint64(n), 1))
	x := make([]T, n)
	for i := range x {
		x[i] = T(r.Float64()*2 - 1)
	}
	return x
}

// guardLen is the number of elements on either side of a guarded slice.
const guardLen = 64

// A guarded slice lies between guards: elements that must not be written. All elements start as NaN.
type guarded[T Float] struct{ all, s []T }

func newGuarded[T Float](n int) guarded[T] {
	all := slices.Repeat([]T{T(math.NaN())}, n+2*guardLen)
	return guarded[T]{all, all[guardLen : guardLen+n : guardLen+n]}
}

// intact reports whether the guards are still NaN.
func (g guarded[T]) intact() bool {
	written := func(v T) bool { return v == v }
	return !slices.ContainsFunc(g.all[:guardLen], written) && !slices.ContainsFunc(g.all[guardLen+len(g.s):], written)
}

// eps is the distance from 1 to the next number of T.
func eps[T Float]() float64 {
	if isFloat32[T]() {
		return 0x1p-23
	}
	return 0x1p-52
}

// near reports whether got is within tol of want, or both are NaN or the same infinity.
func near[T Float](got T, want, tol float64) bool {
	g := float64(got)
	return g == want || math.IsNaN(g) && math.IsNaN(want) || math.Abs(g-want) <= tol
}

// run runs k on a team of the given number of workers with poisoned work memory.
func run(t testing.TB, k *Kernel, workers int) {
	t.Helper()
	mem := AlignedBytes(k.WorkBytes(workers))
	for i := range mem {
		mem[i] = 0xff
	}
	require.NoError(t, NewTeam(workers).Run(k, NewBuf(mem)))
}
