// Package norm holds the kernels of RMSNorm and softmax.
package norm

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
)

// Entries returns the entries of the ops.
func Entries() []kernels.Entry {
	return kernels.Entries(
		kernels.EntryFor[norm.Softmax]{Storage: "t>t", Build: softmax},
		kernels.EntryFor[norm.SoftmaxGrad]{Storage: "tt>t", Build: softmaxGrad},
		kernels.EntryFor[norm.RMSNorm]{Storage: "af>t", Build: rmsNorm},
		kernels.EntryFor[norm.RMSNormGrad]{Storage: "aft>tw", Build: rmsNormGrad[norm.RMSNormGrad]},
		kernels.EntryFor[norm.RMSNormGradAdd]{Storage: "aftt>tw", Build: rmsNormGrad[norm.RMSNormGradAdd]},
	)
}
