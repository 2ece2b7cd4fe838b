// Package rows holds the kernels of ops on elements or on rows: activations, sums, casts, softmax, RoPE, RMSNorm and the gated sum of
// branches.
package rows

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Entries returns the entries of the ops.
func Entries() []kernels.Entry {
	return kernels.Entries(
		kernels.EntryFor[ops.SiLUOp]{Storage: "t>t", Build: unary[ops.SiLUOp]("silu")},
		kernels.EntryFor[ops.SiLUGradOp]{Storage: "tt>t", Build: binary[ops.SiLUGradOp]("silu_grad")},
		kernels.EntryFor[ops.SigmoidOp]{Storage: "t>t", Build: unary[ops.SigmoidOp]("sigmoid")},
		kernels.EntryFor[ops.SigmoidGradOp]{Storage: "tt>t", Build: binary[ops.SigmoidGradOp]("sigmoid_grad")},
		kernels.EntryFor[ops.AddOp]{Storage: "a*>a", Build: add},
		kernels.EntryFor[ops.AddGradOp]{Storage: "a>a", Build: cast[ops.AddGradOp]},
		kernels.EntryFor[ops.CastOp]{Storage: ".>.", Build: cast[ops.CastOp]},
		kernels.EntryFor[ops.SoftmaxOp]{Storage: "t>t", Build: softmax},
		kernels.EntryFor[ops.SoftmaxGradOp]{Storage: "tt>t", Build: softmaxGrad},
		kernels.EntryFor[ops.RoPEOp]{Storage: "td>t", Build: rope},
		kernels.EntryFor[ops.RMSNormOp]{Storage: "af>t", Build: rmsNorm},
		kernels.EntryFor[ops.RMSNormGradOp]{Storage: "aft>tw", Build: rmsNormGrad[ops.RMSNormGradOp]},
		kernels.EntryFor[ops.RMSNormGradAddOp]{Storage: "aftt>tw", Build: rmsNormGrad[ops.RMSNormGradAddOp]},
		kernels.EntryFor[ops.LinearBiasGradOp]{Storage: "t>w", Build: biasGrad},
		kernels.EntryFor[ops.GatedSumOp]{Storage: "tt*>t", Build: gatedSum},
		kernels.EntryFor[ops.GatedSumGradOp]{Storage: "ttt*>tt*", Build: gatedSumGrad},
		kernels.EntryFor[ops.GatedSumGradOp]{Storage: "ttt*>tt*f*", Build: gatedSumGrad}, // with deltas
	)
}
