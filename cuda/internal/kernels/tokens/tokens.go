// Package tokens holds the kernels of embedding, cross entropy and the table of documents.
package tokens

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Rows returns the implementations of the ops.
func Rows() []kernels.Row {
	return kernels.Rows(
		kernels.Op[ops.EmbeddingOp]{Name: "cuda", Storage: "fi>f", Build: embedding},
		kernels.Op[ops.EmbeddingGradOp]{Name: "cuda", Storage: "it>w", Build: embeddingGrad},
		kernels.Op[ops.CrossEntropyOp]{Name: "cuda", Storage: "fi>ff", Build: crossEntropy},
		kernels.Op[ops.CrossEntropyGradOp]{Name: "cuda", Storage: "fiff>t", Build: crossEntropyGrad},
		kernels.Op[ops.DocumentTableOp]{Name: "cuda", Storage: "i>i", Build: documentTable},
	)
}
