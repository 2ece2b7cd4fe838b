package graph_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/graph"
)

// TestArena lays out random lifetimes: what lives at the same time lies apart, and little is wasted.
func TestArena(t *testing.T) {
	total, bound := 0, 0
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 7))
		n := 1 + r.IntN(60)
		first, last, bytes := make([]int, n), make([]int, n), make([]int, n)
		for i := range n {
			first[i] = r.IntN(50)
			last[i] = first[i] + int(r.ExpFloat64()*4)
			bytes[i] = 1 + r.IntN(1<<(3+r.IntN(10)))
		}
		pick := func(list []int) func(int) int { return func(i int) int { return list[i] } }
		offsets, used, least := graph.Regions(n, pick(first), pick(last), pick(bytes), 64)
		total, bound = total+used, bound+least
		require.GreaterOrEqual(t, used, least)
		for i := range n {
			require.Zero(t, offsets[i]%64)
			require.LessOrEqual(t, offsets[i]+bytes[i], used)
			for j := range i {
				if first[i] <= last[j] && first[j] <= last[i] {
					require.True(t, offsets[i]+bytes[i] <= offsets[j] || offsets[j]+bytes[j] <= offsets[i], "seed %d: %d and %d overlap", seed, i, j)
				}
			}
		}
	}
	require.Less(t, float64(total), 1.05*float64(bound))
}
