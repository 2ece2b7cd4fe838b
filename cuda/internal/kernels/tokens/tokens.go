// Package tokens holds the kernels of embedding and cross entropy.
package tokens

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

const name = "cuda" // of all rows

// Rows returns the implementations of the ops.
func Rows() []kernels.Row { return slices.Concat(embeddingRows(), crossEntropyRows()) }
