// Package vocab holds the kernels of embedding and cross entropy.
package vocab

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// Entries returns the entries of the ops.
func Entries() []kernels.Entry { return slices.Concat(embeddingEntries(), crossEntropyEntries()) }
