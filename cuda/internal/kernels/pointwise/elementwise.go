package pointwise

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// The arguments of elementwise.cu.
type (
	unaryParams struct {
		x, y kernels.Ref
		n    int64
	}
	binaryParams struct {
		a, b, y kernels.Ref
		n       int64
	}
	addParams struct {
		x       [maxTerms]kernels.Ref
		y       kernels.Ref
		n       int64
		terms   int32
		float32 int32 // bit k: x[k] is float32 in an op of half precision; bit maxTerms: y is
	}
)

// maxTerms is the most terms that one launch sums.
const maxTerms = 8

// Add adds y = the sum of terms in their order. Each term is float32 or b.Type. With more than maxTerms terms the partial sum is
// stored in y, and so rounded to y's type, before every 7 further terms.
func Add(b *kernels.Builder, y kernels.Operand, terms ...kernels.Operand) error {
	p := addParams{y: y.Ref, n: y.N()}
	put := func(k int32, o kernels.Operand) {
		p.float32 &^= 1 << k
		if b.TypeOf(o) != b.Type {
			p.float32 |= 1 << k
		}
	}
	put(maxTerms, y)
	for _, x := range terms {
		if p.terms == maxTerms {
			elementwise(b, "add", p.n, &p)
			put(0, y)
			p.x[0], p.terms = y.Ref, 1
		}
		put(p.terms, x)
		p.x[p.terms] = x.Ref
		p.terms++
	}
	elementwise(b, "add", p.n, &p)
	return nil
}

// SiLU adds y = x sigmoid(x), of n elements.
func SiLU(b *kernels.Builder, x, y kernels.Ref, n int64) {
	elementwise(b, "silu", n, &unaryParams{x, y, n})
}

// SiLUGrad adds dx from the argument x of SiLU and dy, of n elements.
func SiLUGrad(b *kernels.Builder, x, dy, dx kernels.Ref, n int64) {
	elementwise(b, "silu_grad", n, &binaryParams{x, dy, dx, n})
}

func elementwise(b *kernels.Builder, op string, n int64, params any) {
	b.LaunchElements(b.Type.Name(op), b.Type, n, params)
}

// unary returns the build function of x -> y.
func unary[S any](op string) func(*kernels.Builder, S) error {
	return func(b *kernels.Builder, _ S) error {
		x, y := b.In[0], b.Out[0]
		elementwise(b, op, y.N(), &unaryParams{x.Ref, y.Ref, y.N()})
		return nil
	}
}

// binary returns the build function of a, b -> y.
func binary[S any](op string) func(*kernels.Builder, S) error {
	return func(b *kernels.Builder, _ S) error {
		y := b.Out[0]
		elementwise(b, op, y.N(), &binaryParams{b.In[0].Ref, b.In[1].Ref, y.Ref, y.N()})
		return nil
	}
}

// add adds y = the sum of the inputs in their order.
func add(b *kernels.Builder, _ pointwise.Add) error { return Add(b, b.Out[0], b.In...) }
