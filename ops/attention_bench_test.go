package ops_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// model is the layer that the benchmarks are about.
func model(S int) sizes { return newSizes(1, S, 12, 2, 64, 64) }

var nsaParams = ops.Params{BlockLen: 32, Stride: 16, SelectBlock: 64, TopN: 16, Window: 512}

// benchmark runs spec on all processors and reports its speed; flops are those of one run.
func benchmark(b *testing.B, spec ops.Spec, flops float64, inputs ...array) {
	team := cpu.NewTeam(0)
	x := bind(b, spec, tensor.Float32, team.Workers(), inputs...)
	require.NoError(b, team.Run(&x.kernel, x.mem))
	b.ResetTimer()
	for b.Loop() {
		if err := team.Run(&x.kernel, x.mem); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
}

// benchmarkAttention runs an attention op and its gradient. pairs is the number of visible pairs of a query and a key of
// one head; a pair costs 4D operations forward and 14D backward, where the two passes both recompute the scores.
func benchmarkAttention(b *testing.B, c sizes, pairs float64, spec, grad ops.Spec, inputs ...array) {
	heads := float64(c.B * c.Hq)
	b.Run("forward", func(b *testing.B) { benchmark(b, spec, 4*float64(c.D)*heads*pairs, inputs...) })
	b.Run("backward", func(b *testing.B) {
		do := normal("do", 9, c.B, c.S, c.Hq, c.Dv)
		in := append(append([]array{}, inputs...), outputs(b, spec, tensor.Float32, inputs...)...)
		benchmark(b, grad, 14*float64(c.D)*heads*pairs, append(in, do)...)
	})
}

var benchLengths = []int{2048, 8192}

func forLengths(b *testing.B, f func(b *testing.B, S int)) {
	for _, S := range benchLengths {
		b.Run(fmt.Sprint("S", S), func(b *testing.B) { f(b, S) })
	}
}

// windowPairs is the number of pairs under a window; a window of S is the causal mask.
func windowPairs(S, w int) (pairs float64) {
	for t := range S {
		pairs += float64(min(t+1, w))
	}
	return pairs
}

func compressedPairs(S int, p ops.Params) (pairs float64) {
	for t := range S {
		pairs += float64(ops.NumVisible(t, p.BlockLen, p.Stride))
	}
	return pairs
}

func selectedPairs(S, groups, n, lp int, idx []int32) (pairs float64) {
	for i, j := range idx {
		if t := i / n / groups % S; j >= 0 {
			pairs += float64(max(0, min(lp, t+1-int(j)*lp)))
		}
	}
	return pairs
}

func BenchmarkSlidingWindow(b *testing.B) {
	forLengths(b, func(b *testing.B, S int) {
		c, w := model(S), nsaParams.Window
		q, k, v := c.Tokens(1)
		benchmarkAttention(b, c, windowPairs(S, w), ops.SlidingWindowOp{Window: w}, ops.SlidingWindowGradOp{Window: w}, q, k, v)
	})
}

func BenchmarkCausalAttention(b *testing.B) {
	forLengths(b, func(b *testing.B, S int) {
		c := model(S)
		q, k, v := c.Tokens(1)
		benchmarkAttention(b, c, windowPairs(S, S), ops.SlidingWindowOp{Window: S}, ops.SlidingWindowGradOp{Window: S}, q, k, v)
	})
}

func BenchmarkCompressedAttention(b *testing.B) {
	forLengths(b, func(b *testing.B, S int) {
		c, p := model(S), nsaParams
		q, _, _ := c.Tokens(1)
		kc, vc := c.Compressed(4, p.BlockLen, p.Stride)
		benchmarkAttention(b, c, compressedPairs(S, p), ops.CompressedAttentionOp{BlockLen: p.BlockLen, Stride: p.Stride},
			ops.CompressedAttentionGradOp{BlockLen: p.BlockLen, Stride: p.Stride}, q, kc, vc)
	})
}

func BenchmarkSelectBlocks(b *testing.B) {
	forLengths(b, func(b *testing.B, S int) {
		c, p := model(S), nsaParams
		q, _, _ := c.Tokens(1)
		kc, vc := c.Compressed(4, p.BlockLen, p.Stride)
		o := outputs(b, ops.CompressedAttentionOp{BlockLen: p.BlockLen, Stride: p.Stride}, tensor.Float32, q, kc, vc)
		benchmark(b, ops.SelectBlocksOp{Params: p}, 2*float64(c.D*c.Hq)*compressedPairs(S, p), q, kc, o[1])
	})
}

func BenchmarkSelectedAttention(b *testing.B) {
	forLengths(b, func(b *testing.B, S int) {
		c, p := model(S), nsaParams
		q, k, v := c.Tokens(1)
		kc, vc := c.Compressed(4, p.BlockLen, p.Stride)
		idx := chosen(b, c, p, tensor.Float32, q, kc, vc)
		pairs := selectedPairs(S, c.Hkv, p.TopN, p.SelectBlock, idx.Ints) / float64(c.Hkv)
		benchmarkAttention(b, c, pairs, ops.SelectedAttentionOp{SelectBlock: p.SelectBlock},
			ops.SelectedAttentionGradOp{SelectBlock: p.SelectBlock}, q, k, v, idx)
	})
}
