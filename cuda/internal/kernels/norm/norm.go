// Package norm holds the kernels of RMSNorm and softmax.
package norm

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// Entries returns the entries of the ops.
func Entries() []kernels.Entry { return slices.Concat(rmsNormEntries(), softmaxEntries()) }
