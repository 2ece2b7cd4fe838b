package cublaslt

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// Matmul is the product c [M,N] = op(a) op(b) + bias, of a batch of matrices or one.
type Matmul struct {
	Product kernels.Matmul // types, sizes, transposes, distances; 0 stands for what it stands for there
	// Bias adds bias [N], of the type Out: the library takes no other, where kernels.Matmul takes one of the type Type. All
	// matrices of a batch have the same. In half precision some algorithms round before they add it, and again afterwards.
	Bias bool
	// TF32 allows float32 operands to be rounded to TF32, 10 bits after the point, which is several times as fast. Without it
	// their products are exact.
	TF32 bool
	// Align is the number of bytes of which the addresses of a, b, bias and c are multiples: a power of two, from the size of
	// an element to 256. 0 is 16, which is all that the fast algorithms need. Distances between rows may be any; those of
	// multiples of 16 bytes are fast.
	Align int
	// WorkLimit is the most work memory that the product may take, in bytes. 0 is what cuBLAS itself takes: 32 MiB from
	// compute capability 9.0 on and 4 MiB before. A negative limit allows none.
	WorkLimit int64
}

// Unsupported is the error of a product that the library does not compute.
type Unsupported struct {
	Product string // as in "bf16 [64,768] = [64,768] [768,768]"
	Reason  string
}

func (e *Unsupported) Error() string { return "cublaslt: " + e.Product + ": " + e.Reason }

func (m *Matmul) unsupported(format string, args ...any) error {
	return &Unsupported{m.String(), fmt.Sprintf(format, args...)}
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
	if p.Batch > 1 {
		s += fmt.Sprintf(", batch of %d", p.Batch)
	}
	return s
}

// withDefaults fills in what 0 stands for, on a device of a compute capability.
func (m Matmul) withDefaults(capability int) Matmul {
	p := &m.Product
	rowA, rowB := m.rows()
	for at, v := range map[*int64]int64{&p.LDA: rowA, &p.LDB: rowB, &p.LDC: p.N, &p.Batch: 1} {
		if *at == 0 {
			*at = v
		}
	}
	if m.Align == 0 {
		m.Align = 16
	}
	switch {
	case m.WorkLimit < 0:
		m.WorkLimit = 0
	case m.WorkLimit == 0 && capability >= 90:
		m.WorkLimit = 32 << 20
	case m.WorkLimit == 0:
		m.WorkLimit = 4 << 20
	}
	return m
}

// rows returns the lengths of the rows of a and b as they lie.
func (m *Matmul) rows() (a, b int64) {
	a, b = m.Product.K, m.Product.N
	if m.Product.TransA {
		a = m.Product.M
	}
	if m.Product.TransB {
		b = m.Product.K
	}
	return a, b
}

// check refuses what no library computes, after withDefaults.
func (m *Matmul) check() error {
	p := &m.Product
	if p.Type < kernels.F32 || p.Type > kernels.F16 {
		return m.unsupported("type is %v, want %v, %v or %v", p.Type, kernels.F32, kernels.BF16, kernels.F16)
	}
	if p.Out != kernels.F32 && p.Out != p.Type {
		return m.unsupported("type of the result is %v, want %v or %v", p.Out, kernels.F32, p.Type)
	}
	for _, s := range []struct {
		name string
		n    int64
	}{{"rows", p.M}, {"cols", p.N}, {"inner size", p.K}, {"batch", p.Batch}} {
		if s.n < 1 || s.n > math.MaxInt32 {
			return m.unsupported("%s: got %d, want 1 to %d", s.name, s.n, math.MaxInt32)
		}
	}
	rowA, rowB := m.rows()
	for _, s := range []struct {
		name             string
		row, ld, rows    int64
		stride, smallest int64
	}{
		{"a", rowA, p.LDA, p.M * p.K / rowA, p.StrideA, 0}, {"b", rowB, p.LDB, p.K * p.N / rowB, p.StrideB, 0},
		{"c", p.N, p.LDC, p.M, p.StrideC, 1},
	} {
		if s.ld < s.row {
			return m.unsupported("rows of %s have %d elements and are %d apart", s.name, s.row, s.ld)
		}
		if high, low := bits.Mul64(uint64(s.rows), uint64(s.ld)); high != 0 || low > math.MaxInt64/4 {
			return m.unsupported("%d rows of %s, %d elements apart, are too many", s.rows, s.name, s.ld)
		}
		if p.Batch > 1 && s.stride < s.smallest*((s.rows-1)*s.ld+s.row) {
			return m.unsupported("matrices of %s have %d rows, %d elements apart, and are %d elements apart", s.name, s.rows, s.ld, s.stride)
		}
	}
	if m.Align < p.Out.Bytes() || m.Align < p.Type.Bytes() || m.Align > 256 || bits.OnesCount(uint(m.Align)) != 1 {
		return m.unsupported("addresses are aligned to %d bytes, want a power of two from %d to 256", m.Align, max(p.Type.Bytes(), p.Out.Bytes()))
	}
	if m.TF32 && p.Type != kernels.F32 {
		return m.unsupported("TF32 of operands that are no float32")
	}
	return nil
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
	rowA, rowB := m.rows()
	a = matrix{dataType(p.Type), rowB, p.K * p.N / rowB, p.LDB, p.TransB, p.StrideB}
	b = matrix{dataType(p.Type), rowA, p.M * p.K / rowA, p.LDA, p.TransA, p.StrideA}
	c = matrix{dataType(p.Out), p.N, p.M, p.LDC, false, p.StrideC}
	return a, b, c
}

func dataType(t kernels.Type) int32 {
	return [...]int32{kernels.F32: real32, kernels.BF16: realBF16, kernels.F16: real16}[t]
}
