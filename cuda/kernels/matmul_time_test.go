package kernels_test

import (
	"os"
	"slices"
	"testing"

	"github.com/gorgonia-nsa/nsa/cuda/driver"
	"github.com/gorgonia-nsa/nsa/cuda/kernels"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// matmulRoles are the three products of a linear layer y [tokens,out] = x [tokens,in] Wᵀ.
var matmulRoles = []struct {
	name string
	of   func(tokens, out, in int64) kernels.Matmul
}{
	{"x Wᵀ", func(m, n, k int64) kernels.Matmul {
		return kernels.Matmul{Type: kernels.BF16, Out: kernels.BF16, M: m, N: n, K: k, TransB: true}
	}},
	{"dy W", func(m, n, k int64) kernels.Matmul {
		return kernels.Matmul{Type: kernels.BF16, Out: kernels.BF16, M: m, N: k, K: n}
	}},
	{"dyᵀ x", func(m, n, k int64) kernels.Matmul {
		return kernels.Matmul{Type: kernels.BF16, Out: kernels.F32, M: n, N: k, K: m, TransA: true}
	}},
}

// TestMatmulTime prints the speed of the products of TinyLM Base at 32768 tokens, with NSA_TIME=1: the median of seven rounds
// of 20 runs in a row.
func TestMatmulTime(t *testing.T) {
	if os.Getenv("NSA_TIME") != "1" {
		t.Skip("NSA_TIME is not 1")
	}
	g := openGPU(t)
	const tokens, runs, rounds = 32768, 20, 7
	var at [4]kernels.Ptr // a, b, c, work
	block := encode(kernels.BF16, testutil.Normal(1, 1<<20))
	for i := range at {
		m, err := g.dev.Alloc(4 * tokens * 3072)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { check(t, m.Free()) })
		at[i] = kernels.Ptr(m.Ptr())
		check(t, g.stream.Upload(m.Ptr(), block))
		for done := len(block); done < m.Bytes(); done += len(block) {
			check(t, g.stream.Copy(m.Ptr()+driver.DevicePtr(done), m.Ptr(), min(len(block), m.Bytes()-done)))
		}
	}
	var ends [2]*driver.Event
	for i := range ends {
		var err error
		if ends[i], err = g.dev.NewEvent(true); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { check(t, ends[i].Close()) })
	}
	for _, size := range [][2]int64{{768, 768}, {3072, 768}, {768, 3072}, {256, 768}} {
		for _, r := range matmulRoles {
			op := r.of(tokens, size[0], size[1])
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
			t.Logf("%-6s [%d,%d] over %-5d %5.0f TFLOP/s %7.1f µs, %s, %d blocks, work %d MB", r.name, op.M, op.N, op.K,
				2*float64(op.M)*float64(op.N)*float64(op.K)/median/1e12, 1e6*median, launches[0].Kernel, launches[0].Grid.X,
				op.WorkBytes()>>20)
		}
	}
}
