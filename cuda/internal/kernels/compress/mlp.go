package compress

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/matmul"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/memory"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/pointwise"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/sums"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
)

func mlpEntries() []kernels.Entry {
	in, documents := kernels.Float("x", "pe", "w1", "w2"), kernels.Documents()
	return kernels.Entries(
		kernels.EntryFor[compress.MLP]{
			Types:    kernels.In(in, documents).Out(kernels.Float("y", "hidden")),
			Products: hasBlocks[compress.MLP], Guard: guardMLP, Launches: mlp,
		},
		kernels.EntryFor[compress.MLPGrad]{
			Types:    kernels.In(in, documents, kernels.Float("hidden", "dy")).Out(kernels.Float("dx"), kernels.WeightGrad("dpe", "dw1", "dw2")),
			Products: hasBlocks[compress.MLPGrad], Guard: guardMLPGrad, Launches: mlpGrad,
		},
	)
}

func hasBlocks[S compress.MLP | compress.MLPGrad](c *kernels.Call, op S) bool {
	return c.In[0].Dim(1) >= int64(compress.MLP(op).BlockLen)
}

// mlpProducts returns the products of the forward: of the rows and w1, and of their activations and w2.
func mlpProducts(c *kernels.Call, p blocks) (first, second kernels.Product) {
	n, width, cols := p.rows(), c.In[2].Dim(0), p.len*p.dim
	first = kernels.Product{Type: c.Type, Out: c.Type, M: n, N: width, K: cols, TransB: true}
	return first, kernels.Product{Type: c.Type, Out: c.Type, M: n, N: p.dim, K: width, TransB: true}
}

func guardMLP(c *kernels.Call, op compress.MLP) error {
	p := blocksOf(c.In[0], op.BlockLen, op.Stride)
	if p.blocks == 0 {
		return nil
	}
	first, second := mlpProducts(c, p)
	return c.CheckProducts(first, second)
}

// mlp adds x, pe [l,D], w1 [hidden,l*D], w2 [D,hidden] -> y, hidden. The blocks are gathered as rows [rows,l*D], pe added, and
// multiplied twice.
func mlp(b *kernels.Builder, op compress.MLP) {
	x, pe, w1, w2, y, hidden := b.In[0], b.In[1], b.In[2], b.In[3], b.Out[0], b.Out[1]
	p := blocksOf(x, op.BlockLen, op.Stride)
	if p.blocks == 0 {
		memory.AddZeros(b)
		return
	}
	first, second := mlpProducts(&b.Call, p)
	size, n := int64(b.Type.Bytes()), first.M*first.N
	gathered, act := b.Work(first.M*first.K*size), b.Work(n*size)

	p.addGather(b, x.Ref, pe.Ref, gathered)
	matmul.AddProduct(b, first, gathered, w1.Ref, 0, hidden.Ref)
	pointwise.AddSiLU(b, hidden.Ref, act, n)
	matmul.AddProduct(b, second, act, w2.Ref, 0, y.Ref)
}

// gradProducts are the products of the backward, by their results.
type gradProducts struct{ dw2, dact, dpe, dw1, drows kernels.Product }

func mlpGradProducts(c *kernels.Call, p blocks) gradProducts {
	n, width, cols := p.rows(), c.In[2].Dim(0), p.len*p.dim
	product := func(out kernels.Type, m kernels.Product) kernels.Product {
		m.Type, m.Out = c.Type, out
		return m
	}
	return gradProducts{
		dw2:   product(c.Out[3].Type(), kernels.Product{M: p.dim, N: width, K: n, TransA: true}),
		dact:  product(c.Type, kernels.Product{M: n, N: width, K: p.dim}),
		dpe:   product(c.Out[1].Type(), kernels.Product{M: 1, N: cols, K: width}),
		dw1:   product(c.Out[2].Type(), kernels.Product{M: width, N: cols, K: n, TransA: true}),
		drows: product(c.Type, kernels.Product{M: n, N: cols, K: width}),
	}
}

func guardMLPGrad(c *kernels.Call, op compress.MLPGrad) error {
	p := blocksOf(c.In[0], op.BlockLen, op.Stride)
	if p.blocks == 0 {
		return nil
	}
	of := mlpGradProducts(c, p)
	return c.CheckProducts(of.dw2, of.dact, of.dpe, of.dw1, of.drows)
}

// mlpGrad adds x, pe, w1, w2, hidden, dy -> dx, dpe, dw1, dw2, back through the second product, the SiLU and the first product. The
// gradients of weights may be float32 while the rest is in half precision.
func mlpGrad(b *kernels.Builder, op compress.MLPGrad) {
	x, pe, w1, w2, hidden, dy := b.In[0], b.In[1], b.In[2], b.In[3], b.In[4], b.In[5]
	dx, dpe, dw1, dw2 := b.Out[0], b.Out[1], b.Out[2], b.Out[3]
	p := blocksOf(x, op.BlockLen, op.Stride)
	if p.blocks == 0 {
		memory.AddZeros(b)
		return
	}
	of := mlpGradProducts(&b.Call, p)
	n, width, cols, size := p.rows(), w1.Dim(0), p.len*p.dim, int64(b.Type.Bytes())
	gathered := b.Work(n * cols * size) // reused for their gradient
	dyRef := dy.Ref
	if b.Documents != 0 { // places without a block get zeros: dy holds no gradient there
		dyRef = b.Work(n * p.dim * size)
		p.add(b, "clear", dy.Ref, 0, dyRef, n*p.dim)
	}
	act, dact, dhidden, sum := b.Work(n*width*size), b.Work(n*width*size), b.Work(n*width*size), b.Work(width*size)

	pointwise.AddSiLU(b, hidden.Ref, act, n*width)
	matmul.AddProduct(b, of.dw2, dyRef, act, 0, dw2.Ref)
	matmul.AddProduct(b, of.dact, dyRef, w2.Ref, 0, dact)
	pointwise.AddSiLUGrad(b, hidden.Ref, dact, dhidden, n*width)
	sums.AddColumns(b, dhidden, sum, b.Type, n, width) // pe is added to every row: its gradient is that of the sum of the rows
	p.addGather(b, x.Ref, pe.Ref, gathered)
	matmul.AddProduct(b, of.dpe, sum, w1.Ref, 0, dpe.Ref)
	matmul.AddProduct(b, of.dw1, dhidden, gathered, 0, dw1.Ref)
	matmul.AddProduct(b, of.drows, dhidden, w1.Ref, 0, gathered)
	p.addScatter(b, gathered, dx.Ref)
}
