package kernels_test

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/cublaslt"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// TestProductTime prints the speed of the products of a training step of TinyLM Base, at 32768 tokens, with NSA_TIME=1: by
// cuBLASLt, if it is there, and by our own kernels. It is the median of seven rounds of 20 runs in a row.
func TestProductTime(t *testing.T) {
	if os.Getenv("NSA_TIME") != "1" {
		t.Skip("NSA_TIME is not 1")
	}
	dev := &onGPU{gpu: openGPU(t), t: t}
	defer dev.reset()
	library, err := cublaslt.Open(dev.dev)
	if missing := (*cublaslt.Missing)(nil); errors.As(err, &missing) {
		t.Log(err)
	} else {
		require.NoError(t, err)
		defer func() { check(t, library.Close()) }()
	}
	const tokens = 32768
	var at [4]kernels.Ptr // a, b, c, work
	for i := range at {
		at[i] = dev.noise(t, uint64(i), 2*tokens*3072)
	}
	var ends [2]*driver.Event
	for i := range ends {
		ends[i], err = dev.dev.NewEvent(true)
		require.NoError(t, err)
		defer func() { check(t, ends[i].Close()) }()
	}
	median := func(run func()) float64 {
		const runs, rounds = 20, 7
		times := make([]float64, rounds)
		for round := range times {
			check(t, dev.stream.Record(ends[0]))
			for range runs {
				run()
			}
			check(t, errors.Join(dev.stream.Record(ends[1]), ends[1].Synchronize()))
			d, err := ends[1].Since(ends[0])
			check(t, err)
			times[round] = d.Seconds() / runs
		}
		slices.Sort(times)
		return times[rounds/2]
	}
	for _, size := range [][2]int64{{768, 768}, {3072, 768}, {768, 3072}, {256, 768}} {
		out, in := size[0], size[1]
		for _, p := range []kernels.Product{ // x Wᵀ, dy W and dyᵀ x
			{Type: kernels.BF16, Out: kernels.BF16, M: tokens, N: out, K: in, TransB: true},
			{Type: kernels.BF16, Out: kernels.BF16, M: tokens, N: in, K: out},
			{Type: kernels.BF16, Out: kernels.F32, M: out, N: in, K: tokens, TransA: true},
		} {
			tflops := func(seconds float64) float64 { return 2 * float64(p.M) * float64(p.N) * float64(p.K) / seconds / 1e12 }
			plan := planProduct(t, p, false)
			var calls []*driver.Call
			for i, argument := range bindProduct(t, plan, at[3], at[0], at[1], 0, at[2]).arguments {
				calls = append(calls, dev.call(t, &plan.Steps[i].Launch, argument))
			}
			own := median(func() {
				for _, c := range calls {
					check(t, dev.stream.Launch(c))
				}
			})
			t.Logf("%-50v %5.0f TFLOP/s, %d launches with %d MB of work memory", cublaslt.Matmul{Product: p}, tflops(own), len(calls), plan.WorkBytes()>>20)
			if library == nil {
				continue
			}
			ready, err := library.Prepare(p, false, false)
			require.NoError(t, err)
			lt := median(func() {
				check(t, ready.Run(dev.stream, &driver.Launched{Op: "time"}, kernels.ProductAddresses{A: at[0], B: at[1], C: at[2], Work: at[3]}))
			})
			t.Logf("%-50s %5.0f TFLOP/s, cuBLASLt with %d MB", "", tflops(lt), ready.WorkBytes()>>20)
		}
	}
}
