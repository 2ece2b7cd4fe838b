package kernels_test

import (
	"math/rand/v2"
	"testing"

	"github.com/gorgonia-nsa/nsa/internal/opcases"
)

// TestStartsOnGPU: queries from any token on have the results of the oracle, in 500 random cases in each of the storage
// types, on general kernels, mma and wgmma.
func TestStartsOnGPU(t *testing.T) { startCases(t, openGPU(t), 500, elemTypes, 0, 1, 2, 3) }

// startCases compares the ops with random starts at some of packedSizes, in types, both in turn, on dev.
func startCases(t *testing.T, dev device, tries int, types []elemType, sizes ...int) {
	rng := rand.New(rand.NewPCG(46, 1))
	for i := range tries {
		c := packedSizes[sizes[i%len(sizes)]]
		queries := opcases.Queries{N: 1 + rng.IntN([]int{8, c.S}[rng.IntN(2)])}
		for range c.B {
			queries.Start = append(queries.Start, int32(rng.IntN(c.S-queries.N+1)))
		}
		list := opcases.CasesOfStart(c.Dims, c.Params, queries, opcases.Small)
		compareAll(t, dev, packedCases(t, types[i/len(sizes)%len(types)], list))
	}
}
