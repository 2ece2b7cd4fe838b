// Package vocab holds the kernels of embedding, cross entropy and the largest logits.
package vocab

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// Entries returns the entries of the ops.
func Entries() []kernels.Entry {
	return slices.Concat(embeddingEntries(), crossEntropyEntries(), topKEntries())
}
