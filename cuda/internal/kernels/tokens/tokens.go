// Package tokens holds the kernels of embedding, cross entropy and the table of documents.
package tokens

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Entries returns the entries of the ops.
func Entries() []kernels.Entry {
	return kernels.Entries(
		kernels.EntryFor[ops.EmbeddingOp]{Storage: "fi>f", Build: embedding},
		kernels.EntryFor[ops.EmbeddingGradOp]{Storage: "it>w", Build: embeddingGrad},
		kernels.EntryFor[ops.CrossEntropyOp]{Storage: "fi>ff", Build: crossEntropy},
		kernels.EntryFor[ops.CrossEntropyGradOp]{Storage: "fiff>t", Build: crossEntropyGrad},
		kernels.EntryFor[ops.DocumentTableOp]{Storage: "i>i", Build: documentTable},
	)
}
