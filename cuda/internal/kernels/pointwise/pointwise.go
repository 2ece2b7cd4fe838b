// Package pointwise holds the kernels of ops on elements: sums, activations, RoPE and the gated sum of branches.
package pointwise

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/memory"
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
		kernels.EntryFor[pointwise.AddGrad]{Storage: "a>a", Build: memory.Cast[pointwise.AddGrad]},
		kernels.EntryFor[pointwise.RoPE]{Storage: "td>t", Build: rope},
		kernels.EntryFor[pointwise.GatedSum]{Storage: "tt*>t", Build: gatedSum},
		kernels.EntryFor[pointwise.GatedSumGrad]{Storage: "ttt*>tt*", Build: gatedSumGrad},
		kernels.EntryFor[pointwise.GatedSumGrad]{Storage: "ttt*>tt*f*", Build: gatedSumGrad}, // with deltas
	)
}
