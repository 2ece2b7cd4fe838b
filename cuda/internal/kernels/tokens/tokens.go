// Package tokens holds the kernels of embedding, cross entropy and the table of documents.
package tokens

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Rows returns the implementations of the ops.
func Rows() []kernels.Row {
	return kernels.Rows(
		kernels.Implementation[ops.EmbeddingOp]{Name: "cuda", Storage: "fi>f", Build: embedding},
		kernels.Implementation[ops.EmbeddingGradOp]{Name: "cuda", Storage: "it>w", Build: embeddingGrad},
		kernels.Implementation[ops.CrossEntropyOp]{Name: "cuda", Storage: "fi>ff", Build: crossEntropy},
		kernels.Implementation[ops.CrossEntropyGradOp]{Name: "cuda", Storage: "fiff>t", Build: crossEntropyGrad},
		kernels.Implementation[ops.DocumentTableOp]{Name: "cuda", Storage: "i>i", Build: documentTable},
	)
}
