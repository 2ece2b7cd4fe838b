// Package rows holds the kernels of ops that go over elements or over rows: activations, sums, casts, softmax, RoPE, RMSNorm and
// the gated sum of branches.
package rows

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

const name = "cuda" // of all rows

// Rows returns the implementations of the ops.
func Rows() []kernels.Row {
	return slices.Concat(elementwiseRows(), memoryRows(), softmaxRows(), ropeRows(), rmsNormRows(), sumRows(), gateRows())
}
