package kernels_test

import (
	"os"
	"slices"
	"testing"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/products"
)

// TestMatmulTime prints the speed of the products of TinyLM Base at 32768 tokens, with NSA_TIME=1: the median of seven rounds
// of 20 runs in a row.
func TestMatmulTime(t *testing.T) {
	if os.Getenv("NSA_TIME") != "1" {
		t.Skip("NSA_TIME is not 1")
	}
	g := openGPU(t)
	const runs, rounds = 20, 7
	var at [4]kernels.Ptr // a, b, c, work
	for i, p := range products.Operands(t, g.dev, g.stream) {
		at[i] = kernels.Ptr(p)
	}
	ends := products.Ends(t, g.dev)
	for _, r := range products.All() {
		op := r.Matmul
		launches, err := op.Forward(nil, at[0], at[1], 0, at[2], at[3])
		if err != nil {
			t.Fatal(err)
		}
		calls := g.prepare(t, launches)
		times := make([]float64, rounds)
		for round := range times {
			check(t, g.stream.Record(ends[0]))
			for range runs {
				for _, c := range calls {
					check(t, g.stream.Launch(c))
				}
			}
			check(t, g.stream.Record(ends[1]))
			check(t, ends[1].Synchronize())
			d, err := ends[1].Since(ends[0])
			check(t, err)
			times[round] = d.Seconds() / runs
		}
		slices.Sort(times)
		median := times[rounds/2]
		t.Logf("%-6s [%d,%d] over %-5d %5.0f TFLOP/s %7.1f µs, %s, %d blocks, work %d MB", r.Role, op.M, op.N, op.K,
			2*float64(op.M)*float64(op.N)*float64(op.K)/median/1e12, 1e6*median, launches[0].Kernel, launches[0].Grid.X,
			op.WorkBytes()>>20)
	}
}
