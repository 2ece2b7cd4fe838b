package cublaslt

import (
	"fmt"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
)

// unsupported refuses a product that the library does not compute.
func unsupported(p kernels.Product, format string, args ...any) error {
	return graph.Refuse(graph.ReasonShape, "cublaslt: %v: %s", p, fmt.Sprintf(format, args...))
}

// complete fills in all defaults and refuses what no library computes.
func complete(p kernels.Product) (kernels.Product, error) {
	p, err := p.Complete()
	if err == nil && p.TF32 && p.Type != kernels.F32 {
		err = unsupported(p, "TF32 of operands that are no float32")
	}
	if err == nil && p.Bias && p.Residual {
		err = unsupported(p, "a bias and a residual: in half precision some algorithms round three times")
	}
	return p, err
}

// matrix is a matrix as the library sees it: column-major.
type matrix struct {
	typ        int32
	rows, cols int64
	ld         int64 // elements from one column to the next
	transposed bool  // before it is multiplied
	stride     int64 // elements from one of the batch to the next
}

// columnMajor returns the product that the library is asked for. What lies row-major as [r,c] lies column-major as [c,r], so
// the library is to compute cᵀ [N,M] = op(b)ᵀ op(a)ᵀ: its a is b.
func columnMajor(p *kernels.Product) (a, b, c matrix) {
	rowA, rowB := p.Rows()
	a = matrix{dataType(p.Type), rowB, p.K * p.N / rowB, p.LDB, p.TransB, p.StrideB}
	b = matrix{dataType(p.Type), rowA, p.M * p.K / rowA, p.LDA, p.TransA, p.StrideA}
	c = matrix{dataType(p.Out), p.N, p.M, p.LDC, false, p.StrideC}
	return a, b, c
}

func dataType(t kernels.Type) int32 {
	return [...]int32{kernels.F32: real32, kernels.BF16: realBF16, kernels.F16: real16}[t]
}
