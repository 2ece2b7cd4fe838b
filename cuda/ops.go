package cuda

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// compileOp returns the launches of an op of package ops. An *graph.Unsupported says why there are none.
func compileOp(site graph.Site, gpu kernels.GPU, in, out []ops.Arg) (compiled, error) {
	switch op := site.Spec.(type) {
	case ops.SlidingWindowOp:
		return compileAttention(gpu, in, out, func(a kernels.Attention) span { return a.SlidingWindow(int64(op.Window)) })
	case ops.SlidingWindowGradOp:
		return compileAttentionGrad(gpu, in, out, func(a kernels.Attention) span { return a.SlidingWindow(int64(op.Window)) })
	case ops.CompressedAttentionOp:
		return compileAttention(gpu, in, out, compressedOf(op))
	case ops.CompressedAttentionGradOp:
		return compileAttentionGrad(gpu, in, out, compressedOf(ops.CompressedAttentionOp(op)))
	case ops.SelectedAttentionOp:
		return compileSelected(op, gpu, in, out)
	case ops.SelectedAttentionGradOp:
		return compileSelectedGrad(ops.SelectedAttentionOp(op), gpu, in, out)
	case ops.SelectBlocksOp:
		return compileSelect(op.Params, gpu, in, out)

	case ops.CompressMeanOp:
		return compileMean(op, in, out)
	case ops.CompressMeanGradOp:
		return compileMeanGrad(ops.CompressMeanOp{BlockLen: op.BlockLen, Stride: op.Stride}, in, out)
	case ops.CompressMLPOp:
		return compileMLP(op, in, out)
	case ops.CompressMLPGradOp:
		return compileMLPGrad(ops.CompressMLPOp(op), in, out)

	case ops.LinearOp:
		return compileLinear(in, out)
	case ops.LinearInputGradOp:
		return compileLinearInputGrad(in, out)
	case ops.LinearWeightGradOp:
		return compileLinearWeightGrad(op, in, out)
	case ops.LinearBiasGradOp:
		return compileLinearBiasGrad(op, in, out)

	case ops.SiLUOp:
		return compileUnary(kernels.Elementwise.SiLU, in, out)
	case ops.SiLUGradOp:
		return compileBinary(kernels.Elementwise.SiLUGrad, in, out)
	case ops.SigmoidOp:
		return compileUnary(kernels.Elementwise.Sigmoid, in, out)
	case ops.SigmoidGradOp:
		return compileBinary(kernels.Elementwise.SigmoidGrad, in, out)
	case ops.AddOp:
		return compileAdd(in, out)
	case ops.AddGradOp:
		return compileCopy(in, out)
	case ops.CastOp:
		return compileCast(in, out)

	case ops.RoPEOp:
		return compileRoPE(op, in, out)
	case ops.RMSNormOp:
		return compileRMSNorm(op, in, out)
	case ops.RMSNormGradOp:
		return compileRMSNormGrad(op, in, out)
	case ops.SoftmaxOp:
		return compileSoftmax(in, out)
	case ops.SoftmaxGradOp:
		return compileSoftmaxGrad(in, out)
	case ops.GatedSumOp:
		return compileGatedSum(in, out)
	case ops.GatedSumGradOp:
		return compileGatedSumGrad(in, out)

	case ops.EmbeddingOp:
		return compileEmbedding(in, out)
	case ops.EmbeddingGradOp:
		return compileEmbeddingGrad(in, out)
	case ops.CrossEntropyOp:
		return compileCrossEntropy(in, out)
	case ops.CrossEntropyGradOp:
		return compileCrossEntropyGrad(in, out)
	case ops.AdamWOp:
		return compileAdamW(op, in, out)
	}
	return compiled{}, graph.Refuse(graph.ReasonMissing, "no kernel for %s", nameOf(site))
}
