// Package tokens holds the kernels of embedding and cross entropy.
package tokens

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Rows returns the implementations of the ops.
func Rows() []kernels.Row {
	return kernels.Rows(
		kernels.Op[ops.EmbeddingOp]{Name: "cuda", Storage: "ti>t", Build: embedding},
		kernels.Op[ops.EmbeddingGradOp]{Name: "cuda", Storage: "it>w", Build: embeddingGrad},
		kernels.Op[ops.CrossEntropyOp]{Name: "cuda", Storage: "ti>ff", Build: crossEntropy},
		kernels.Op[ops.CrossEntropyGradOp]{Name: "cuda", Storage: "tiff>t", Build: crossEntropyGrad},
	)
}
