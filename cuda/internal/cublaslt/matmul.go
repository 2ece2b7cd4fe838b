package cublaslt

import (
	"fmt"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
)

// Matmul is the product c [M,N] = op(a) op(b) + bias + residual, of a batch of matrices or one.
type Matmul struct {
	Product kernels.Product // zero fields mean the defaults of kernels.Product
	// Bias adds bias [N], of the type Out: the library takes no other, where kernels.Product takes one of the type Type. All
	// matrices of a batch have the same. In half precision some algorithms round before they add it, and again afterwards.
	Bias bool
	// TF32 allows float32 operands to be rounded to TF32, 10 bits after the point, which is several times as fast. Without it
	// their products are exact.
	TF32 bool
}

// unsupported refuses a product that the library does not compute.
func (m *Matmul) unsupported(format string, args ...any) error {
	return graph.Refuse(graph.ReasonShape, "cublaslt: %v: %s", m, fmt.Sprintf(format, args...))
}

// String describes the product in a line.
func (m Matmul) String() string {
	p := m.Product
	side := func(rows, cols int64, transposed bool) string {
		if transposed {
			return fmt.Sprintf("[%d,%d]ᵀ", cols, rows)
		}
		return fmt.Sprintf("[%d,%d]", rows, cols)
	}
	types := p.Type.String()
	if p.Out != p.Type {
		types += " to " + p.Out.String()
	}
	s := fmt.Sprintf("%s [%d,%d] = %s %s", types, p.M, p.N, side(p.M, p.K, p.TransA), side(p.K, p.N, p.TransB))
	if m.Bias {
		s += " + bias"
	}
	if p.Residual {
		s += " + residual"
	}
	if p.Batch > 1 {
		s += fmt.Sprintf(", batch of %d", p.Batch)
	}
	return s
}

// complete fills in all defaults and refuses what no library computes.
func (m Matmul) complete() (Matmul, error) {
	var err error
	if m.Product, err = m.Product.Complete(); err == nil && m.TF32 && m.Product.Type != kernels.F32 {
		err = m.unsupported("TF32 of operands that are no float32")
	}
	if err == nil && m.Bias && m.Product.Residual {
		err = m.unsupported("a bias and a residual: in half precision some algorithms round three times")
	}
	return m, err
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
func (m *Matmul) columnMajor() (a, b, c matrix) {
	p := &m.Product
	rowA, rowB := p.Rows()
	a = matrix{dataType(p.Type), rowB, p.K * p.N / rowB, p.LDB, p.TransB, p.StrideB}
	b = matrix{dataType(p.Type), rowA, p.M * p.K / rowA, p.LDA, p.TransA, p.StrideA}
	c = matrix{dataType(p.Out), p.N, p.M, p.LDC, false, p.StrideC}
	return a, b, c
}

func dataType(t kernels.Type) int32 {
	return [...]int32{kernels.F32: real32, kernels.BF16: realBF16, kernels.F16: real16}[t]
}
