package pointwise

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/memory"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// addEntries returns the entries of Add, which takes all sizes and any number of terms, and of its gradient, a cast.
func addEntries() []kernels.Entry {
	return kernels.Entries(
		kernels.EntryFor[pointwise.Add]{
			Types:    kernels.In(kernels.Mixed("terms").Repeated()).Out(kernels.Mixed("y")),
			Launches: func(b *kernels.Builder, _ pointwise.Add) { AddSum(b, b.Out[0], b.In...) },
		},
		memory.CastEntry[pointwise.AddGrad](kernels.In(kernels.Mixed("dy")).Out(kernels.Mixed("dx"))),
	)
}

// addParams is AddParams of elementwise.cu.
type addParams struct {
	x       [maxTerms]kernels.Ref
	y       kernels.Ref
	n       int64
	terms   int32
	float32 int32 // bit k: x[k] is float32 in an op of half precision; bit maxTerms: y is
}

// maxTerms is the most terms that one launch sums.
const maxTerms = 8

// AddSum adds y = the sum of terms in their order. Each term is float32 or b.Type. With more than maxTerms terms the
// partial sum is stored in y, and so rounded to y's type, before every 7 further terms.
func AddSum(b *kernels.Builder, y kernels.Operand, terms ...kernels.Operand) {
	p := addParams{y: y.Ref, n: y.N()}
	put := func(k int32, o kernels.Operand) {
		p.float32 &^= 1 << k
		if o.Type() != b.Type {
			p.float32 |= 1 << k
		}
	}
	launch := func() { b.AddElements(b.Type.Name("add"), b.Type, p.n, &p) }
	put(maxTerms, y)
	for _, x := range terms {
		if p.terms == maxTerms {
			launch()
			put(0, y)
			p.x[0], p.terms = y.Ref, 1
		}
		put(p.terms, x)
		p.x[p.terms] = x.Ref
		p.terms++
	}
	launch()
}
