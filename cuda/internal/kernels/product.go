package kernels

import (
	"fmt"
	"math"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/graph"
)

// Product is the matrix product c [M,N] = op(a) op(b) + bias + residual, of a batch of matrices or one, with float32 sums. All
// matrices are row-major.
type Product struct {
	Type           Type // of a, b and the bias
	Out            Type // of c: F32 or Type
	M, N, K        int64
	TransA, TransB bool  // a is stored as [K,M], b as [N,K]
	LDA, LDB, LDC  int64 // elements from one row to the next; 0 for rows without gaps

	Batch                     int64 // matrices; 0 is one
	StrideA, StrideB, StrideC int64 // elements from one to the next; 0 repeats a or b

	// What a Library adds, and whether it may round. The first two are set by who lists or adds the product.
	Bias     bool // there is a bias [N], the same for all matrices of a batch
	Residual bool // there is a residual, in the layout of c
	TF32     bool // float32 operands may be rounded to TF32: 10 bits after the point, several times as fast
}

// String describes the product in a line.
func (p Product) String() string {
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
	if p.Bias {
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

// Rows returns the lengths of the rows of a and b as they are stored.
func (p *Product) Rows() (a, b int64) {
	a, b = p.K, p.N
	if p.TransA {
		a = p.M
	}
	if p.TransB {
		b = p.K
	}
	return a, b
}

// Complete returns the product with all defaults filled in. It refuses types and sizes that neither our kernels nor a library
// compute.
func (p Product) Complete() (Product, error) {
	rowA, rowB := p.Rows()
	for _, d := range []struct {
		at *int64
		n  int64
	}{{&p.LDA, rowA}, {&p.LDB, rowB}, {&p.LDC, p.N}, {&p.Batch, 1}} {
		if *d.at == 0 {
			*d.at = d.n
		}
	}
	refuse := func(format string, args ...any) (Product, error) {
		return p, graph.Refuse(graph.ReasonShape, "matrix product: "+format, args...)
	}
	if p.Type < F32 || p.Type > F16 {
		return refuse("type is %v, want %v, %v or %v", p.Type, F32, BF16, F16)
	}
	if p.Out != F32 && p.Out != p.Type {
		return refuse("type of the result is %v, want %v or %v", p.Out, F32, p.Type)
	}
	for _, s := range []struct {
		name string
		n    int64
	}{{"rows", p.M}, {"cols", p.N}, {"inner size", p.K}, {"batch", p.Batch}} {
		if s.n < 1 || s.n > math.MaxInt32 {
			return refuse("%s: got %d, want 1 to %d", s.name, s.n, math.MaxInt32)
		}
	}
	for _, s := range []struct {
		name                  string
		row, ld, rows, stride int64
	}{{"a", rowA, p.LDA, p.M * p.K / rowA, p.StrideA}, {"b", rowB, p.LDB, p.K * p.N / rowB, p.StrideB}, {"c", p.N, p.LDC, p.M, p.StrideC}} {
		if s.ld < s.row {
			return refuse("rows of %s have %d elements and are %d apart", s.name, s.row, s.ld)
		}
		if s.ld > maxElements/s.rows/p.Batch {
			return refuse("%d matrices of %d rows of %s, %d elements apart, are too many", p.Batch, s.rows, s.name, s.ld)
		}
		minStride := int64(0)
		if s.name == "c" { // its matrices must not overlap
			minStride = (s.rows-1)*s.ld + s.row
		}
		if p.Batch > 1 && (s.stride < minStride || s.stride > maxElements/p.Batch) {
			return refuse("matrices of %s are %d elements apart, want %d to 2^56 for all", s.name, s.stride, minStride)
		}
	}
	return p, nil
}

// Library runs matrix products faster than our own kernels.
type Library interface {
	// Prepare returns a product ready to run, the same one for equal products. A *graph.Unsupported leaves the op to our
	// kernels.
	Prepare(Product) (PreparedProduct, error)
	// Close frees the library and what it has prepared.
	Close() error
}

// PreparedProduct is a product of a library, which several machines may run at once.
type PreparedProduct interface {
	WorkBytes() int64
	// Run enqueues the product. l names it in a Fault. It allocates nothing once warm.
	Run(s *driver.Stream, l *driver.Launched, at ProductAddresses) error
}

// ProductAddresses holds the addresses of the matrices and the work memory of a product. Bias and Residual are 0 if there is none.
type ProductAddresses struct{ A, B, Bias, Residual, C, Work Ptr }

// LibraryProduct is a product of a library and the Refs of its operands.
type LibraryProduct struct {
	PreparedProduct
	A, B, Bias, Residual, C, Work Ref
}

// Addresses returns the addresses of all operands and of the work memory.
func (p *LibraryProduct) Addresses(at Addresses) ProductAddresses {
	return ProductAddresses{at.Of(p.A), at.Of(p.B), at.Of(p.Bias), at.Of(p.Residual), at.Of(p.C), at.Of(p.Work)}
}

// prepare checks a product. If there is a library, it returns the library's product, the same one for equal products.
func (c *Call) prepare(p Product) (PreparedProduct, error) {
	p, err := p.Complete()
	if err != nil || c.Library == nil {
		return nil, err
	}
	p.TF32 = c.Policy.TF32 && p.Type == F32
	return c.Library.Prepare(p)
}

// AddProduct adds a product that b.Library computes. bias and residual are 0 for none.
func (b *Builder) AddProduct(p Product, x, y, bias, residual, c Ref) {
	p.Bias, p.Residual = bias != 0, residual != 0
	ready, err := b.prepare(p)
	if err != nil {
		b.Fail(err)
		return
	}
	b.plan.Steps = append(b.plan.Steps, Step{Product: &LibraryProduct{ready, x, y, bias, residual, c, b.Scratch(ready.WorkBytes())}})
}
