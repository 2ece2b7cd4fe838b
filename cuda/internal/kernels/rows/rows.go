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
		kernels.Implementation[ops.SiLUOp]{Name: name, Storage: "t>t", Build: unary[ops.SiLUOp]("silu")},
		kernels.Implementation[ops.SiLUGradOp]{Name: name, Storage: "tt>t", Build: binary[ops.SiLUGradOp]("silu_grad")},
		kernels.Implementation[ops.SigmoidOp]{Name: name, Storage: "t>t", Build: unary[ops.SigmoidOp]("sigmoid")},
		kernels.Implementation[ops.SigmoidGradOp]{Name: name, Storage: "tt>t", Build: binary[ops.SigmoidGradOp]("sigmoid_grad")},
		kernels.Implementation[ops.AddOp]{Name: name, Storage: "a*>a", Build: add},
		kernels.Implementation[ops.AddGradOp]{Name: name, Storage: "a>a", Build: cast[ops.AddGradOp]},
		kernels.Implementation[ops.CastOp]{Name: name, Storage: ".>.", Build: cast[ops.CastOp]},
		kernels.Implementation[ops.SoftmaxOp]{Name: name, Storage: "t>t", Build: softmax},
		kernels.Implementation[ops.SoftmaxGradOp]{Name: name, Storage: "tt>t", Build: softmaxGrad},
		kernels.Implementation[ops.RoPEOp]{Name: name, Storage: "td>t", Build: rope},
		kernels.Implementation[ops.RMSNormOp]{Name: name, Storage: "af>t", Build: rmsNorm},
		kernels.Implementation[ops.RMSNormGradOp]{Name: name, Storage: "aft>tw", Build: rmsNormGrad[ops.RMSNormGradOp]},
		kernels.Implementation[ops.RMSNormGradAddOp]{Name: name, Storage: "aftt>tw", Build: rmsNormGrad[ops.RMSNormGradAddOp]},
		kernels.Implementation[ops.LinearBiasGradOp]{Name: name, Storage: "t>w", Build: biasGrad},
		kernels.Implementation[ops.GatedSumOp]{Name: name, Storage: "tt*>t", Build: gatedSum},
		kernels.Implementation[ops.GatedSumGradOp]{Name: name, Storage: "ttt*>tt*", Build: gatedSumGrad},
		kernels.Implementation[ops.GatedSumGradOp]{Name: name, Storage: "ttt*>tt*f*", Build: gatedSumGrad}, // with deltas
	)
}
