package ops_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// The sizes of the layers that the benchmarks are about: tokens, width, vocabulary.
const benchTokens, benchDim, benchVocab = 2048, 768, 256

// benchmarkBytes runs spec on all processors and reports the memory traffic of its operands, each read or written once.
func benchmarkBytes(b *testing.B, spec ops.Spec, inputs ...array) {
	team := cpu.NewTeam(0)
	x := bind(b, spec, tensor.Float32, team.Workers(), inputs...)
	require.NoError(b, team.Run(&x.kernel, x.mem))
	bytes := 0
	for _, o := range append(x.in, x.out...) {
		bytes += o.Operand.Bytes()
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := team.Run(&x.kernel, x.mem); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(bytes)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GB/s")
}

func BenchmarkLinear(b *testing.B) {
	x, w, dy := normal("x", 1, 1, benchTokens, benchDim), normal("w", 2, benchDim, benchDim), normal("dy", 3, 1, benchTokens, benchDim)
	const flops = 2 * benchTokens * benchDim * benchDim
	b.Run("forward", func(b *testing.B) { benchmark(b, ops.LinearOp{}, flops, x, w) })
	b.Run("input gradient", func(b *testing.B) {
		benchmark(b, ops.LinearInputGradOp{Axes: ops.Axes{benchDim}}, flops, dy, w)
	})
	b.Run("weight gradient", func(b *testing.B) {
		benchmark(b, ops.LinearWeightGradOp{Out: benchDim, In: benchDim}, flops, x, dy)
	})
	b.Run("bias gradient", func(b *testing.B) { benchmarkBytes(b, ops.LinearBiasGradOp{Out: benchDim}, dy) })
}

func BenchmarkRMSNorm(b *testing.B) {
	x, w, dy := normal("x", 1, 1, benchTokens, benchDim), normal("w", 2, benchDim), normal("dy", 3, 1, benchTokens, benchDim)
	b.Run("forward", func(b *testing.B) { benchmarkBytes(b, ops.RMSNormOp{Eps: 1e-6}, x, w) })
	b.Run("backward", func(b *testing.B) { benchmarkBytes(b, ops.RMSNormGradOp{Eps: 1e-6}, x, w, dy) })
}

func BenchmarkSiLU(b *testing.B) {
	x, dy := normal("x", 1, 1, benchTokens, 4*benchDim), normal("dy", 2, 1, benchTokens, 4*benchDim)
	b.Run("forward", func(b *testing.B) { benchmarkBytes(b, ops.SiLUOp{}, x) })
	b.Run("backward", func(b *testing.B) { benchmarkBytes(b, ops.SiLUGradOp{}, x, dy) })
}

func BenchmarkAdd(b *testing.B) {
	x, y := normal("x", 1, 1, benchTokens, benchDim), normal("y", 2, 1, benchTokens, benchDim)
	benchmarkBytes(b, ops.AddOp{}, x, y)
}

func BenchmarkRoPE(b *testing.B) {
	benchmarkBytes(b, ops.RoPEOp{Base: 10000}, normal("x", 1, 1, benchTokens, 12, 64))
}

func BenchmarkCrossEntropy(b *testing.B) {
	x := normal("logits", 1, 1, benchTokens, benchVocab)
	targets := array{Name: "targets", Shape: []int{1, benchTokens}, Ints: testutil.Tokens(2, benchTokens, benchVocab)}
	lse := outputs(b, ops.CrossEntropyOp{}, tensor.Float32, x, targets)[1]
	b.Run("forward", func(b *testing.B) { benchmarkBytes(b, ops.CrossEntropyOp{}, x, targets) })
	b.Run("backward", func(b *testing.B) {
		benchmarkBytes(b, ops.CrossEntropyGradOp{}, x, targets, lse, array{Name: "dloss", Floats: []float64{1}})
	})
}

func BenchmarkEmbedding(b *testing.B) {
	w, dy := normal("weight", 1, benchVocab, benchDim), normal("dy", 3, 1, benchTokens, benchDim)
	ids := array{Name: "ids", Shape: []int{1, benchTokens}, Ints: testutil.Tokens(2, benchTokens, benchVocab)}
	b.Run("forward", func(b *testing.B) { benchmarkBytes(b, ops.EmbeddingOp{}, w, ids) })
	b.Run("backward", func(b *testing.B) { benchmarkBytes(b, ops.EmbeddingGradOp{Vocab: benchVocab}, ids, dy) })
}

func BenchmarkCompress(b *testing.B) {
	const hkv, d, l, stride, hidden = 2, 64, 32, 16, 64
	x, pe := normal("x", 1, 1, benchTokens, hkv, d), normal("pe", 2, l, d)
	w1, w2 := normal("w1", 3, hidden, l*d), normal("w2", 4, d, hidden)
	n := ops.NumCompressed(benchTokens, l, stride)
	dy := normal("dy", 5, 1, n, hkv, d)
	flops := 2 * float64(n*hkv) * hidden * (l*d + d)
	mlp := ops.CompressMLPOp{BlockLen: l, Stride: stride}
	b.Run("mean forward", func(b *testing.B) { benchmarkBytes(b, ops.CompressMeanOp(mlp), x) })
	b.Run("mean backward", func(b *testing.B) {
		benchmarkBytes(b, ops.CompressMeanGradOp{BlockLen: l, Stride: stride, Tokens: benchTokens}, dy)
	})
	b.Run("mlp forward", func(b *testing.B) { benchmark(b, mlp, flops, x, pe, w1, w2) })
	b.Run("mlp backward", func(b *testing.B) {
		pre := outputs(b, mlp, tensor.Float32, x, pe, w1, w2)[1]
		benchmark(b, ops.CompressMLPGradOp(mlp), 2*flops, x, pe, w1, w2, pre, dy)
	})
}

func BenchmarkGatedSum(b *testing.B) {
	in := []array{normal("gates", 1, 1, benchTokens, 12, 3)}
	for i := range 4 {
		in = append(in, normal("x", uint64(2+i), 1, benchTokens, 12, 64))
	}
	b.Run("forward", func(b *testing.B) { benchmarkBytes(b, ops.GatedSumOp{}, in[:4]...) })
	b.Run("backward", func(b *testing.B) { benchmarkBytes(b, ops.GatedSumGradOp{}, in...) })
}

// BenchmarkAdamW steps 12 M parameters; each is read with its gradient and moments, and three of the four are written.
func BenchmarkAdamW(b *testing.B) {
	a := newAdamW[float32](b, "11111", 0, []int{4096, 768}, []int{4096, 768}, []int{4096, 768}, []int{4096, 768}, []int{768})
	a.fill(0, 1, 1)
	a.fill(1, 2, 1e-3)
	h := ops.AdamWHyper{LR: 1e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1, Step: 1}
	h.Write(a.hyper)
	bytes := 0
	for _, x := range a.state {
		bytes += 4 * len(x)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := a.team.Run(&a.kernel, a.mem); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(bytes)*2*float64(b.N)/b.Elapsed().Seconds()/1e9, "GB/s") // 4 reads, 1 more for the norm, 3 writes
}
