// Package vocab holds the kernels of embedding and cross entropy.
package vocab

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops/spec/vocab"
)

// Entries returns the entries of the ops.
func Entries() []kernels.Entry {
	return kernels.Entries(
		kernels.EntryFor[vocab.Embedding]{Storage: "fi>f", Build: embedding},
		kernels.EntryFor[vocab.EmbeddingGrad]{Storage: "it>w", Build: embeddingGrad},
		kernels.EntryFor[vocab.CrossEntropy]{Storage: "fi>ff", Build: crossEntropy},
		kernels.EntryFor[vocab.CrossEntropyGrad]{Storage: "fiff>t", Build: crossEntropyGrad},
	)
}
