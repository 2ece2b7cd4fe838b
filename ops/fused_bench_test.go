package ops_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// call is a Spec with its inputs.
type call struct {
	spec   ops.Spec
	inputs []array
}

// benchmarkFused runs a fused Spec and those that it stands for in turns, and reports the shortest time of each and their
// ratio.
func benchmarkFused(b *testing.B, fused call, separate ...call) {
	team := cpu.NewTeam(0)
	var kernels []*bound
	for _, c := range append(separate, fused) {
		kernels = append(kernels, bind(b, c.spec, tensor.Float32, team.Workers(), c.inputs...))
	}
	measure := func(best *time.Duration, list []*bound) {
		start := time.Now()
		for _, k := range list {
			if err := team.Run(&k.kernel, k.mem); err != nil {
				b.Fatal(err)
			}
		}
		*best = min(*best, time.Since(start))
	}
	one, all := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
	for b.Loop() {
		measure(&all, kernels[:len(separate)])
		measure(&one, kernels[len(separate):])
	}
	b.ReportMetric(float64(one.Microseconds()), "µs-fused")
	b.ReportMetric(float64(all.Microseconds()), "µs-separate")
	b.ReportMetric(float64(one)/float64(all), "fused/separate")
}

// BenchmarkFused compares the Specs of a fuse pass with those that they stand for, at the sizes of Base(): the layers of
// one input are q, k and v of three branches, and the first layer of the gates.
func BenchmarkFused(b *testing.B) {
	x, weight := normal("x", 1, 1, benchTokens, benchDim), normal("weight", 2, benchDim)
	y, dy := normal("y", 3, 1, benchTokens, benchDim), normal("dy", 4, 1, benchTokens, benchDim)
	outs := []int{768, 128, 128, 128, 128, 128, 128, 64}
	linears := ops.LinearsOp{}
	linears.Bias[len(outs)-1] = true
	bias := normal("bias", 5, outs[len(outs)-1])
	axes := ops.Axes{benchDim}
	var ws, dys, dxs []array
	var forward, gradients []call
	for i, out := range outs {
		w, d := normal("w", uint64(10+i), out, benchDim), normal("dy", uint64(30+i), 1, benchTokens, out)
		ws, dys, dxs = append(ws, w), append(dys, d), append(dxs, normal("dx", uint64(50+i), 1, benchTokens, benchDim))
		one := []array{x, w}
		if linears.Bias[i] {
			one = append(one, bias)
		}
		forward = append(forward, call{ops.LinearOp{}, one})
		gradients = append(gradients, call{ops.LinearInputGradOp{Axes: axes}, []array{d, w}}, call{ops.LinearWeightGradOp{Out: out, In: benchDim}, []array{x, d}})
	}
	b.Run("linears", func(b *testing.B) {
		benchmarkFused(b, call{linears, append(append([]array{x}, ws...), bias)}, forward...)
	})
	b.Run("gradient of linears", func(b *testing.B) {
		benchmarkFused(b, call{ops.LinearsGradOp{In: benchDim}, slices.Concat([]array{x}, dys, ws)}, append(gradients, call{ops.AddOp{}, dxs})...)
	})
	w1, h := normal("w", 7, 4*benchDim, benchDim), normal("h", 8, 1, benchTokens, 4*benchDim)
	b.Run("linear with silu", func(b *testing.B) {
		benchmarkFused(b, call{ops.LinearSiLUOp{}, []array{x, w1}}, call{ops.LinearOp{}, []array{x, w1}}, call{ops.SiLUOp{}, []array{h}})
	})
	b.Run("linear with add", func(b *testing.B) {
		w := normal("w", 9, benchDim, benchDim)
		benchmarkFused(b, call{ops.LinearAddOp{}, []array{x, w, y}}, call{ops.LinearOp{}, []array{x, w}}, call{ops.AddOp{}, []array{x, y}})
	})
	b.Run("gradient of rms norm with add", func(b *testing.B) {
		benchmarkFused(b, call{ops.RMSNormGradAddOp{Eps: 1e-6}, []array{x, weight, dy, y}},
			call{ops.RMSNormGradOp{Eps: 1e-6}, []array{x, weight, dy}}, call{ops.AddOp{}, []array{x, y}})
	})
}
