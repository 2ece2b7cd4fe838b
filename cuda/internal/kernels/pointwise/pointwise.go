// Package pointwise holds the kernels of sums, repeated rows, activations, RoPE and the gated sum of branches.
package pointwise

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// Entries returns the entries of the ops.
func Entries() []kernels.Entry {
	return slices.Concat(addEntries(), activationEntries(), swiGLUEntries(), ropeEntries(), gatedSumEntries(), repeatEntries())
}
