package kernels_test

import (
	"math/rand/v2"
	"testing"

	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/ops"
)

// startSizes are for the kernels of each method: selected attention by bits, by pairs of one tile of keys or of two, by
// walks over blocks of 64 tokens or less, block selections of several lengths. Only the last two have dims that mma
// does not take.
var startSizes = []struct {
	opcases.Dims
	ops.Params
}{
	{opcases.Dims{B: 2, S: 150, Hq: 4, Hkv: 2, D: 8, Dv: 16}, ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 64,
		TopN: 3, Window: 20}},
	{opcases.Dims{B: 1, S: 460, Hq: 3, Hkv: 1, D: 8, Dv: 8}, ops.Params{BlockLen: 32, Stride: 16, SelectBlock: 64,
		TopN: 3, Window: 70}},
	{opcases.Dims{B: 1, S: 900, Hq: 1, Hkv: 1, D: 8, Dv: 16}, ops.Params{BlockLen: 4, Stride: 2, SelectBlock: 128,
		TopN: 3, Window: 200}},
	{opcases.Dims{B: 2, S: 129, Hq: 3, Hkv: 1, D: 64, Dv: 64}, ops.Params{BlockLen: 32, Stride: 16, SelectBlock: 16,
		TopN: 4, Window: 70}},
	{opcases.Dims{B: 1, S: 460, Hq: 8, Hkv: 1, D: 64, Dv: 72}, ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 64,
		TopN: 3, Window: 33}},
	{opcases.Dims{B: 2, S: 99, Hq: 3, Hkv: 1, D: 6, Dv: 7}, ops.Params{BlockLen: 4, Stride: 2, SelectBlock: 6,
		TopN: 4, Window: 33}},
	{opcases.Dims{B: 1, S: 420, Hq: 2, Hkv: 2, D: 192, Dv: 128}, ops.Params{BlockLen: 16, Stride: 16, SelectBlock: 64,
		TopN: 3, Window: 64}},
}

// TestStartsOnGPU: queries from any token on have the results of the oracle, in 500 random cases, in each storage type,
// on all kernels that take them.
func TestStartsOnGPU(t *testing.T) { startCases(t, openGPU(t), 500, elemTypes, 0, 1, 2, 3, 4, 5, 6) }

// startCases compares the ops with random starts at some of startSizes, in types, both in turn, on dev. It leaves out
// ops that dev has no kernels for.
func startCases(t *testing.T, dev device, tries int, types []elemType, sizes ...int) {
	rng := rand.New(rand.NewPCG(46, 1))
	for i := range tries {
		c := startSizes[sizes[i%len(sizes)]]
		queries := opcases.Queries{N: 1 + rng.IntN([]int{8, c.S}[rng.IntN(2)])}
		for range c.B {
			queries.Start = append(queries.Start, int32(rng.IntN(c.S-queries.N+1)))
		}
		list := packedCases(t, types[i/len(sizes)%len(types)], opcases.CasesOfStart(c.Dims, c.Params, queries, opcases.Small))
		for _, x := range list {
			if v := dev.variants()[0]; v.entry == "cuda mma" && (x.Mask == nil && x.Selection == nil || !x.takenBy(t, v)) {
				continue
			}
			compareAll(t, dev, []typedCase{x})
		}
	}
}
