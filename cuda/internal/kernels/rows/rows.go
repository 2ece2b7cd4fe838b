// Package rows holds the kernels of ops on elements or on rows: activations, sums, casts, softmax, RoPE, RMSNorm and the gated sum of
// branches.
package rows

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// Entries returns the entries of the ops.
func Entries() []kernels.Entry {
	return kernels.Entries(
		kernels.EntryFor[pointwise.SiLU]{Storage: "t>t", Build: unary[pointwise.SiLU]("silu")},
		kernels.EntryFor[pointwise.SiLUGrad]{Storage: "tt>t", Build: binary[pointwise.SiLUGrad]("silu_grad")},
		kernels.EntryFor[pointwise.Sigmoid]{Storage: "t>t", Build: unary[pointwise.Sigmoid]("sigmoid")},
		kernels.EntryFor[pointwise.SigmoidGrad]{Storage: "tt>t", Build: binary[pointwise.SigmoidGrad]("sigmoid_grad")},
		kernels.EntryFor[pointwise.Add]{Storage: "a*>a", Build: add},
		kernels.EntryFor[pointwise.AddGrad]{Storage: "a>a", Build: cast[pointwise.AddGrad]},
		kernels.EntryFor[spec.Cast]{Storage: ".>.", Build: cast[spec.Cast]},
		kernels.EntryFor[norm.Softmax]{Storage: "t>t", Build: softmax},
		kernels.EntryFor[norm.SoftmaxGrad]{Storage: "tt>t", Build: softmaxGrad},
		kernels.EntryFor[pointwise.RoPE]{Storage: "td>t", Build: rope},
		kernels.EntryFor[norm.RMSNorm]{Storage: "af>t", Build: rmsNorm},
		kernels.EntryFor[norm.RMSNormGrad]{Storage: "aft>tw", Build: rmsNormGrad[norm.RMSNormGrad]},
		kernels.EntryFor[norm.RMSNormGradAdd]{Storage: "aftt>tw", Build: rmsNormGrad[norm.RMSNormGradAdd]},
		kernels.EntryFor[linear.BiasGrad]{Storage: "t>w", Build: biasGrad},
		kernels.EntryFor[pointwise.GatedSum]{Storage: "tt*>t", Build: gatedSum},
		kernels.EntryFor[pointwise.GatedSumGrad]{Storage: "ttt*>tt*", Build: gatedSumGrad},
		kernels.EntryFor[pointwise.GatedSumGrad]{Storage: "ttt*>tt*f*", Build: gatedSumGrad}, // with deltas
	)
}
