package cuda

import (
	"slices"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Storage implements graph.Backend. Activations and weights lie in half precision where an op of package ops reads or
// writes them; statistics, losses and the gradients of weights in float32, and so does all that stock ops touch.
func (b *Backend) Storage(s graph.Site, half tensor.Dtype) (in, out []tensor.Dtype) {
	in, out = dtypes(s.In), dtypes(s.Out)
	if s.Spec == nil {
		inFloat32(in)
		inFloat32(out)
		return in, out
	}
	lowered := true
	keepIn, keepOut := []int{}, []int{} // places of what stays float32
	switch s.Spec.(type) {
	case ops.SlidingWindowOp, ops.CompressedAttentionOp, ops.SelectedAttentionOp:
		keepOut = []int{1}
	case ops.SlidingWindowGradOp, ops.CompressedAttentionGradOp:
		keepIn = []int{4}
	case ops.SelectedAttentionGradOp:
		keepIn = []int{5}
	case ops.SelectBlocksOp:
		keepIn = []int{2}
	case ops.CompressMeanOp, ops.CompressMeanGradOp, ops.CompressMLPOp, ops.LinearOp, ops.LinearInputGradOp, ops.SiLUOp,
		ops.SiLUGradOp, ops.SigmoidOp, ops.SigmoidGradOp, ops.RoPEOp, ops.RMSNormOp, ops.SoftmaxOp, ops.SoftmaxGradOp,
		ops.GatedSumOp, ops.GatedSumGradOp, ops.EmbeddingOp:
	case ops.LinearWeightGradOp, ops.LinearBiasGradOp, ops.EmbeddingGradOp:
		keepOut = []int{0}
	case ops.RMSNormGradOp:
		keepOut = []int{1}
	case ops.CompressMLPGradOp:
		keepOut = []int{1, 2, 3}
	case ops.CrossEntropyOp:
		keepOut = []int{0, 1}
	case ops.CrossEntropyGradOp:
		keepIn = []int{2, 3}
	case ops.AddOp, ops.AddGradOp:
		lowered = slices.ContainsFunc(s.In, func(o ops.Operand) bool { return ops.IsHalf(o.Dtype) })
	case ops.CastOp:
		return in, out
	default:
		lowered = false
	}
	if !lowered {
		inFloat32(in)
		inFloat32(out)
		return in, out
	}
	lower(in, half, keepIn)
	lower(out, half, keepOut)
	return in, out
}

func dtypes(list []ops.Operand) []tensor.Dtype {
	types := make([]tensor.Dtype, len(list))
	for i, o := range list {
		types[i] = o.Dtype
	}
	return types
}

// inFloat32 replaces half precision.
func inFloat32(list []tensor.Dtype) {
	for i, dt := range list {
		if ops.IsHalf(dt) {
			list[i] = tensor.Float32
		}
	}
}

// lower replaces float32 by half, but at the places that keep it.
func lower(list []tensor.Dtype, half tensor.Dtype, keep []int) {
	for i, dt := range list {
		switch {
		case slices.Contains(keep, i):
			if ops.IsHalf(dt) {
				list[i] = tensor.Float32
			}
		case dt == tensor.Float32 || ops.IsHalf(dt):
			list[i] = half
		}
	}
}
