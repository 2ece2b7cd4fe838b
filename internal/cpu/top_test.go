package cpu

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTopMatchesSort: random elements, many of them equal, NaN, infinite or zeros of both signs.
func TestTopMatchesSort(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	inf := float32(math.Inf(1))
	special := []float32{float32(math.NaN()), inf, -inf, 0, float32(math.Copysign(0, -1))}
	for range 2000 {
		x, values := make([]float32, 1+r.IntN(200)), 1+r.IntN(300)
		want := make([]int32, len(x))
		for i := range x {
			if x[i], want[i] = float32(r.IntN(values))-float32(values)/2, int32(i); r.IntN(8) == 0 {
				x[i] = special[r.IntN(len(special))]
			}
		}
		slices.SortStableFunc(want, func(a, b int32) int {
			if n, m := x[a] != x[a], x[b] != x[b]; n != m {
				return map[bool]int{true: -1, false: 1}[n]
			}
			return cmp.Compare(x[b], x[a])
		})
		ids := make([]int32, r.IntN(len(x)+1))
		Top(ids, x)
		require.Equal(t, want[:len(ids)], ids, "%v", x)
	}
}
