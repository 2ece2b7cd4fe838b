package compress

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/matmul"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/memory"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/pointwise"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/sums"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
)

// mlpEntries returns entries that are guarded by their products (Entry.Guard): they take all sizes of these.
func mlpEntries() []kernels.Entry {
	in, documents := kernels.Float("x", "pe", "w1", "w2"), kernels.Documents()
	grads := kernels.WeightGrad("dpe", "dw1", "dw2")
	return kernels.Entries(
		kernels.EntryFor[compress.MLP]{
			Types:    kernels.In(in, documents).Out(kernels.Float("y", "hidden")),
			Products: mlpProducts, Launches: mlp,
		},
		kernels.EntryFor[compress.MLPGrad]{
			Types:    kernels.In(in, documents, kernels.Float("hidden", "dy")).Out(kernels.Float("dx"), grads),
			Products: mlpGradProducts, Launches: mlpGrad,
		},
	)
}

func mlpProducts(c *kernels.Call, op compress.MLP) []kernels.Product {
	return MLPProducts(c, c.In[0], c.In[2], op.BlockLen, op.Stride)
}

// MLPProducts returns the products of AddMLP: of the rows and w1, and of their activations and w2; none without a block.
func MLPProducts(c *kernels.Call, x, w1 kernels.Operand, length, stride int) []kernels.Product {
	p := blocksOf(x, length, stride)
	if p.blocks == 0 {
		return nil
	}
	n, width, cols := p.rows(), w1.Dim(0), p.len*p.dim
	return []kernels.Product{
		{Type: c.Type, Out: c.Type, M: n, N: width, K: cols, TransB: true},
		{Type: c.Type, Out: c.Type, M: n, N: p.dim, K: width, TransB: true},
	}
}

// mlp adds x, pe, w1, w2 -> y, hidden.
func mlp(b *kernels.Builder, op compress.MLP) {
	x := b.In[0]
	p := blocksOf(x, op.BlockLen, op.Stride)
	if p.blocks == 0 {
		memory.AddZeros(b)
		return
	}
	p.addMLP(b, x, b.In[1:4], b.Out[0].Ref, b.Out[1].Ref)
}

// AddMLP adds x [B,S,Hkv,D], phi -> y [B,Nc,Hkv,D], the MLP of each block, of which there is at least one. phi are pe [l,D],
// w1 [hidden,l*D] and w2 [D,hidden].
func AddMLP(b *kernels.Builder, x kernels.Operand, phi []kernels.Operand, y kernels.Ref, length, stride int) {
	p := blocksOf(x, length, stride)
	p.addMLP(b, x, phi, y, b.Work(p.rows()*phi[1].Dim(0)*int64(b.Type.Bytes())))
}

// addMLP adds the launches of AddMLP, which also write hidden. The blocks are gathered as rows [rows,l*D], pe added, and multiplied twice.
func (p blocks) addMLP(b *kernels.Builder, x kernels.Operand, phi []kernels.Operand, y, hidden kernels.Ref) {
	pe, w1, w2 := phi[0], phi[1], phi[2]
	products := MLPProducts(&b.Call, x, w1, int(p.len), int(p.stride))
	size, n := int64(b.Type.Bytes()), p.rows()*w1.Dim(0)
	gathered, act := b.Work(p.rows()*p.len*p.dim*size), b.Work(n*size)

	p.addGather(b, x.Ref, pe.Ref, gathered)
	matmul.AddProduct(b, products[0], gathered, w1.Ref, 0, hidden)
	pointwise.AddSiLU(b, hidden, act, n)
	matmul.AddProduct(b, products[1], act, w2.Ref, 0, y)
}

// mlpGradProducts returns the products of dw2, of the gradient of the activations, of dpe, of dw1 and of the gradient
// of the rows, in the order of the launches; none without a block.
func mlpGradProducts(c *kernels.Call, op compress.MLPGrad) []kernels.Product {
	p := blocksOf(c.In[0], op.BlockLen, op.Stride)
	if p.blocks == 0 {
		return nil
	}
	n, width, cols := p.rows(), c.In[2].Dim(0), p.len*p.dim
	dpe, dw1, dw2 := c.Out[1].Type(), c.Out[2].Type(), c.Out[3].Type()
	return []kernels.Product{
		{Type: c.Type, Out: dw2, M: p.dim, N: width, K: n, TransA: true},
		{Type: c.Type, Out: c.Type, M: n, N: width, K: p.dim},
		{Type: c.Type, Out: dpe, M: 1, N: cols, K: width},
		{Type: c.Type, Out: dw1, M: width, N: cols, K: n, TransA: true},
		{Type: c.Type, Out: c.Type, M: n, N: cols, K: width},
	}
}

// mlpGrad adds x, pe, w1, w2, hidden, dy -> dx, dpe, dw1, dw2, back through the second product, the SiLU and the first
// product. The gradients of weights may be float32 while the rest is in half precision.
func mlpGrad(b *kernels.Builder, op compress.MLPGrad) {
	x, pe, w1, w2, hidden, dy := b.In[0], b.In[1], b.In[2], b.In[3], b.In[4], b.In[5]
	dx, dpe, dw1, dw2 := b.Out[0], b.Out[1], b.Out[2], b.Out[3]
	p := blocksOf(x, op.BlockLen, op.Stride)
	if p.blocks == 0 {
		memory.AddZeros(b)
		return
	}
	products := mlpGradProducts(&b.Call, op)
	n, width, cols, size := p.rows(), w1.Dim(0), p.len*p.dim, int64(b.Type.Bytes())
	gathered := b.Work(n * cols * size) // reused for their gradient
	dyRef := dy.Ref
	if b.Documents != 0 { // places without a block get zeros: dy holds no gradient there
		dyRef = b.Work(n * p.dim * size)
		p.add(b, "clear", dy.Ref, 0, dyRef, n*p.dim)
	}
	act, dact, dhidden, sum := b.Work(n*width*size), b.Work(n*width*size), b.Work(n*width*size), b.Work(width*size)

	pointwise.AddSiLU(b, hidden.Ref, act, n*width)
	matmul.AddProduct(b, products[0], dyRef, act, 0, dw2.Ref)
	matmul.AddProduct(b, products[1], dyRef, w2.Ref, 0, dact)
	pointwise.AddSiLUGrad(b, hidden.Ref, dact, dhidden, n*width)
	sums.AddColumns(b, dhidden, sum, b.Type, n, width) // pe is added to every row: dpe is that of the sum of the rows
	p.addGather(b, x.Ref, pe.Ref, gathered)
	matmul.AddProduct(b, products[2], sum, w1.Ref, 0, dpe.Ref)
	matmul.AddProduct(b, products[3], dhidden, gathered, 0, dw1.Ref)
	matmul.AddProduct(b, products[4], dhidden, w1.Ref, 0, gathered)
	p.addScatter(b, gathered, dx.Ref)
}
