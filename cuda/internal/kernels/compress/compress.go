// Package compress holds the kernels of compressed keys and values: the mean of each block of tokens, and an MLP over it.
package compress

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/matmul"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/memory"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/pointwise"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/sums"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
)

// Entries returns the entries of the compression ops.
func Entries() []kernels.Entry {
	return kernels.Entries(
		kernels.EntryFor[compress.Mean]{Storage: "td>t", Build: mean},
		kernels.EntryFor[compress.MeanGrad]{Storage: "td>t", Build: meanGrad},
		kernels.EntryFor[compress.MLP]{Storage: "ttttd>tt", Products: hasBlocks[compress.MLP], Build: mlp},
		kernels.EntryFor[compress.MLPGrad]{Storage: "ttttdtt>twww", Products: hasBlocks[compress.MLPGrad], Build: mlpGrad},
	)
}

// blocks is CompressParams of compress.cu: the complete blocks of an operand [batch,seq,heads,dim], of len tokens, stride apart.
type blocks struct {
	x, pe, y, documents                         kernels.Ref
	batch, seq, blocks, heads, dim, len, stride int64
}

// blocksOf returns the blocks of an operand. A sequence shorter than a block has no blocks, and its compressed array is one row of
// zeros.
func blocksOf(o kernels.Operand, length, stride int) blocks {
	return blocks{
		batch: o.Dim(0), seq: o.Dim(1), heads: o.Dim(2), dim: o.Dim(3), len: int64(length), stride: int64(stride),
		blocks: int64(spec.NumCompressed(o.Shape[1], length, stride)),
	}
}

// rows is the number of rows of the MLP: one for each block and head.
func (p blocks) rows() int64 { return p.batch * p.blocks * p.heads }

// gather adds the launch that writes rows [rows(),len*dim]: the blocks of x plus pe [len,dim].
func (p blocks) gather(b *kernels.Builder, x, pe, rows kernels.Ref) {
	p.launch(b, "gather", x, pe, rows, p.rows()*p.len*p.dim)
}

// scatter adds the launch that computes dx from the gradient of gather's rows.
func (p blocks) scatter(b *kernels.Builder, drows, dx kernels.Ref) {
	p.launch(b, "scatter", drows, 0, dx, p.batch*p.seq*p.heads*p.dim)
}

// launch adds the launch of an op over n elements that reads x, and pe if it is not 0, and writes y.
func (p blocks) launch(b *kernels.Builder, op string, x, pe, y kernels.Ref, n int64) {
	p.x, p.pe, p.y, p.documents = x, pe, y, b.Documents
	b.LaunchElements(b.Type.Name("compress_"+op), b.Type, n, &p)
}

// mean adds x [B,S,Hkv,D] -> y [B,Nc,Hkv,D], the mean of each block.
func mean(b *kernels.Builder, op compress.Mean) error {
	return launchMean(b, "mean", b.In[0], op.BlockLen, op.Stride)
}

// meanGrad adds dy -> dx.
func meanGrad(b *kernels.Builder, op compress.MeanGrad) error {
	return launchMean(b, "mean_grad", b.Out[0], op.BlockLen, op.Stride)
}

// launchMean adds the launch of mean or mean_grad. tokens is the operand with a row for each token.
func launchMean(b *kernels.Builder, op string, tokens kernels.Operand, length, stride int) error {
	p := blocksOf(tokens, length, stride)
	if p.blocks == 0 {
		return memory.Zeros(b)
	}
	p.launch(b, op, b.In[0].Ref, 0, b.Out[0].Ref, b.Out[0].N())
	return nil
}

func hasBlocks[S compress.MLP | compress.MLPGrad](b *kernels.Builder, op S) bool {
	return b.In[0].Dim(1) >= int64(compress.MLP(op).BlockLen)
}

// mlp adds x, pe [l,D], w1 [hidden,l*D], w2 [D,hidden] -> y, hidden. The blocks are gathered as rows [rows,l*D], pe added, and
// multiplied twice.
func mlp(b *kernels.Builder, op compress.MLP) error {
	x, pe, w1, w2, y, hidden := b.In[0], b.In[1], b.In[2], b.In[3], b.Out[0], b.Out[1]
	p := blocksOf(x, op.BlockLen, op.Stride)
	if p.blocks == 0 {
		return memory.Zeros(b)
	}
	n, width, cols, size := p.rows(), w1.Dim(0), p.len*p.dim, int64(b.Type.Bytes())
	gathered, act := b.Work(n*cols*size), b.Work(n*width*size)

	p.gather(b, x.Ref, pe.Ref, gathered)
	matmul.Multiply(b, kernels.Product{Type: b.Type, Out: b.Type, M: n, N: width, K: cols, TransB: true}, gathered, w1.Ref, 0, hidden.Ref)
	pointwise.SiLU(b, hidden.Ref, act, n*width)
	matmul.Multiply(b, kernels.Product{Type: b.Type, Out: b.Type, M: n, N: p.dim, K: width, TransB: true}, act, w2.Ref, 0, y.Ref)
	return nil
}

// mlpGrad adds x, pe, w1, w2, hidden, dy -> dx, dpe, dw1, dw2, back through the second product, the SiLU and the first product. The
// gradients of weights may be float32 while the rest is in half precision.
func mlpGrad(b *kernels.Builder, op compress.MLPGrad) error {
	x, pe, w1, w2, hidden, dy := b.In[0], b.In[1], b.In[2], b.In[3], b.In[4], b.In[5]
	dx, dpe, dw1, dw2 := b.Out[0], b.Out[1], b.Out[2], b.Out[3]
	p := blocksOf(x, op.BlockLen, op.Stride)
	if p.blocks == 0 {
		return memory.Zeros(b)
	}
	n, width, cols, size := p.rows(), w1.Dim(0), p.len*p.dim, int64(b.Type.Bytes())
	gathered := b.Work(n * cols * size) // reused for their gradient
	dyRef := dy.Ref
	if b.Documents != 0 { // places without a block get zeros: dy holds no gradient there
		dyRef = b.Work(n * p.dim * size)
		p.launch(b, "clear", dy.Ref, 0, dyRef, n*p.dim)
	}
	act, dact, dhidden, sum := b.Work(n*width*size), b.Work(n*width*size), b.Work(n*width*size), b.Work(width*size)
	multiply := func(out kernels.Type, m kernels.Product, x, y, to kernels.Ref) {
		m.Type, m.Out = b.Type, out
		matmul.Multiply(b, m, x, y, 0, to)
	}

	pointwise.SiLU(b, hidden.Ref, act, n*width)
	multiply(b.TypeOf(dw2), kernels.Product{M: p.dim, N: width, K: n, TransA: true}, dyRef, act, dw2.Ref)
	multiply(b.Type, kernels.Product{M: n, N: width, K: p.dim}, dyRef, w2.Ref, dact)
	pointwise.SiLUGrad(b, hidden.Ref, dact, dhidden, n*width)
	sums.ColumnSum(b, dhidden, sum, b.Type, n, width) // pe is added to every row, so its gradient is that of the sum of the rows
	p.gather(b, x.Ref, pe.Ref, gathered)
	multiply(b.TypeOf(dpe), kernels.Product{M: 1, N: cols, K: width}, sum, w1.Ref, dpe.Ref)
	multiply(b.TypeOf(dw1), kernels.Product{M: width, N: cols, K: n, TransA: true}, dhidden, gathered, dw1.Ref)
	multiply(b.Type, kernels.Product{M: n, N: cols, K: width}, dhidden, w1.Ref, gathered)
	p.scatter(b, gathered, dx.Ref)
	return nil
}
