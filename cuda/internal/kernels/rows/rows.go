// Package rows holds the kernels of ops that go over elements or over rows: activations, sums, casts, softmax, RoPE, RMSNorm and
// the gated sum of branches.
package rows

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops"
)

const name = "cuda" // of all rows

// Rows returns the implementations of the ops.
func Rows() []kernels.Row {
	return kernels.Rows(
		kernels.Op[ops.SiLUOp]{Name: name, Storage: "t>t", Build: unary[ops.SiLUOp]("silu")},
		kernels.Op[ops.SiLUGradOp]{Name: name, Storage: "tt>t", Build: binary[ops.SiLUGradOp]("silu_grad")},
		kernels.Op[ops.SigmoidOp]{Name: name, Storage: "t>t", Build: unary[ops.SigmoidOp]("sigmoid")},
		kernels.Op[ops.SigmoidGradOp]{Name: name, Storage: "tt>t", Build: binary[ops.SigmoidGradOp]("sigmoid_grad")},
		kernels.Op[ops.AddOp]{Name: name, Storage: "a*>a", Build: add},
		kernels.Op[ops.AddGradOp]{Name: name, Storage: "a>a", Build: cast[ops.AddGradOp]},
		kernels.Op[ops.CastOp]{Name: name, Storage: ".>.", Build: cast[ops.CastOp]},
		kernels.Op[ops.SoftmaxOp]{Name: name, Storage: "t>t", Build: softmax},
		kernels.Op[ops.SoftmaxGradOp]{Name: name, Storage: "tt>t", Build: softmaxGrad},
		kernels.Op[ops.RoPEOp]{Name: name, Storage: "td>t", Build: rope},
		kernels.Op[ops.RMSNormOp]{Name: name, Storage: "af>t", Build: rmsNorm},
		kernels.Op[ops.RMSNormGradOp]{Name: name, Storage: "aft>tw", Build: rmsNormGrad[ops.RMSNormGradOp]},
		kernels.Op[ops.RMSNormGradAddOp]{Name: name, Storage: "aftt>tw", Build: rmsNormGrad[ops.RMSNormGradAddOp]},
		kernels.Op[ops.LinearBiasGradOp]{Name: name, Storage: "t>w", Build: biasGrad},
		kernels.Op[ops.GatedSumOp]{Name: name, Storage: "tt*>t", Build: gatedSum},
		kernels.Op[ops.GatedSumGradOp]{Name: name, Storage: "ttt*>tt*", Build: gatedSumGrad},
		kernels.Op[ops.GatedSumGradOp]{Name: name, Storage: "ttt*>tt*f*", Build: gatedSumGrad}, // with deltas
	)
}
