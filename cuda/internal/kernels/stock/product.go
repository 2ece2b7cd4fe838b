package stock

import (
	"cmp"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/matmul"
)

// ProductKind is what a Product multiplies.
type ProductKind int

// The kinds of products.
const (
	MatrixMatrix ProductKind = iota
	MatrixVector
	VectorVector // a number
	OuterProduct // of vectors, a matrix
	Batched      // matrices of a batch
)

// multiplies reports whether neither operand is a vector.
func multiplies(p kernels.Product) bool { return p.Batch > 1 || p.N > 1 && p.M > 1 }

// batched returns a product whose matrices lie one after the other.
func batched(p kernels.Product) kernels.Product {
	p.StrideA, p.StrideB, p.StrideC = p.M*p.K, p.K*p.N, p.M*p.N
	return p
}

// productsOf returns p if addProduct adds it as a matrix product.
func productsOf(p kernels.Product, ok bool) []kernels.Product {
	if !ok || !multiplies(p) {
		return nil
	}
	return []kernels.Product{batched(p)}
}

// addProduct adds a product of float32. If one operand is a vector, it is a reduction, which reads the other operand once.
// Otherwise it is a matrix product, which a library may compute.
func addProduct(b *kernels.Builder, p kernels.Product, x, y, z kernels.Ref) {
	if multiplies(p) {
		matmul.AddProduct(b, batched(p), x, y, 0, z)
		return
	}
	rows, across := p.M, p.TransA // across: the sum is along the columns of the stored matrix
	if p.N > 1 {                  // the matrix is the second one
		x, y, rows, across = y, x, p.N, !p.TransB
	}
	r := reduction{outer: rows, along: p.K, inner: 1}
	if across {
		r.outer, r.inner = 1, rows
	}
	r.add(b, x, y, z)
}

func guardProduct(c *kernels.Call, op Product) error {
	p, ok := op.sizes(c.In[0], c.In[1])
	if !ok || p.Batch*p.M*p.N != c.Out[0].N() {
		return refuseShapes(c)
	}
	return nil
}

func product(b *kernels.Builder, op Product) {
	p, _ := op.sizes(b.In[0], b.In[1])
	addProduct(b, p, b.In[0].Ref, b.In[1].Ref, b.Out[0].Ref)
}

func products(c *kernels.Call, op Product) []kernels.Product {
	return productsOf(op.sizes(c.In[0], c.In[1]))
}

// sizes returns the sizes of the product; ok is false if the operands do not fit each other.
func (op Product) sizes(a, b kernels.Operand) (p kernels.Product, ok bool) {
	p = kernels.Product{TransA: op.TransA, TransB: op.TransB, Batch: 1}
	switch op.Kind {
	case VectorVector:
		return kernels.Product{M: 1, K: a.N(), N: 1, Batch: 1}, a.N() == b.N()
	case OuterProduct:
		return kernels.Product{M: a.N(), K: 1, N: b.N(), Batch: 1}, true
	case MatrixVector:
		if len(a.Shape) != 2 || op.TransB {
			return p, false
		}
		p.M, p.K = matrix(a.Shape, op.TransA)
		p.N = 1
		return p, b.N() == p.K
	}
	outerA, outerB := len(a.Shape)-2, len(b.Shape)-2
	if outerA < 0 || outerA != outerB || op.Kind == MatrixMatrix && outerA != 0 || !slices.Equal(a.Shape[:outerA], b.Shape[:outerB]) {
		return p, false
	}
	for _, n := range a.Shape[:outerA] {
		p.Batch *= int64(n)
	}
	p.M, p.K = matrix(a.Shape[outerA:], op.TransA)
	k, n := matrix(b.Shape[outerB:], op.TransB)
	p.N = n
	return p, k == p.K
}

// matrix returns the sizes of a matrix, after its transposition.
func matrix(shape tensor.Shape, trans bool) (rows, cols int64) {
	if trans {
		return int64(shape[1]), int64(shape[0])
	}
	return int64(shape[0]), int64(shape[1])
}

// tensordotProduct returns the operands of a tensordot as matrices, and their product; ok is false if they do not fit
// each other.
func tensordotProduct(c *kernels.Call, op Tensordot) (x, y side, p kernels.Product, ok bool) {
	x, okX := sideOf(c.In[0], op.A)
	y, okY := sideOf(c.In[1], op.B)
	if !okX || !okY || len(op.A) != len(op.B) || x.free*y.free != c.Out[0].N() {
		return x, y, p, false
	}
	for i := range op.A {
		if c.In[0].Shape[op.A[i]] != c.In[1].Shape[op.B[i]] {
			return x, y, p, false
		}
	}
	p = kernels.Product{M: x.free, N: y.free, K: x.along, TransA: x.alongFirst, TransB: !y.alongFirst, Batch: 1}
	return x, y, p, true
}

func guardTensordot(c *kernels.Call, op Tensordot) error {
	x, y, _, ok := tensordotProduct(c, op)
	if !ok {
		return refuseShapes(c)
	}
	return cmp.Or(x.copyTo(0).guard(), y.copyTo(0).guard())
}

// tensordot brings the axes of the sum together, by a copy to work memory if needed, and multiplies matrices.
func tensordot(b *kernels.Builder, op Tensordot) {
	x, y, p, _ := tensordotProduct(&b.Call, op)
	xs, ys := x.addMatrix(b), y.addMatrix(b)
	addProduct(b, p, xs, ys, b.Out[0].Ref)
}

func tensordotProducts(c *kernels.Call, op Tensordot) []kernels.Product {
	_, _, p, ok := tensordotProduct(c, op)
	return productsOf(p, ok)
}

// side is an operand of a tensordot as a matrix.
type side struct {
	x           kernels.Operand
	free, along int64
	alongFirst  bool  // [along,free], not [free,along]
	order       []int // of the axes in a copy; nil if x needs no copy
}

// sideOf describes x as a matrix: the axes of the sum, in the order given, and the other axes.
func sideOf(x kernels.Operand, axes []int) (side, bool) {
	s := side{x: x, free: 1, along: 1}
	if !distinct(axes, len(x.Shape)) {
		return s, false
	}
	var free []int
	for i := range x.Shape {
		if slices.Contains(axes, i) {
			s.along *= x.Dim(i)
		} else {
			s.free *= x.Dim(i)
			free = append(free, i)
		}
	}
	s.alongFirst = slices.IsSorted(slices.Concat(axes, free))
	if order := slices.Concat(free, axes); !s.alongFirst && !slices.IsSorted(order) {
		s.order = order
	}
	return s, true
}

func (s side) copyTo(to kernels.Ref) elementCopy {
	from := ordered(s.x, s.order)
	return elementCopy{from, rowMajor(to, from.sizes...)}
}

// addMatrix returns the Ref of the matrix. If x needs a copy, addMatrix adds that first.
func (s side) addMatrix(b *kernels.Builder) kernels.Ref {
	if s.order == nil {
		return s.x.Ref
	}
	to := b.Work(4 * s.x.N())
	s.copyTo(to).add(b)
	return to
}
