// Package compress holds the kernels of compressed keys and values: the mean of each block of tokens, and an MLP over it.
package compress

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Entries returns the entries of the ops.
func Entries() []kernels.Entry { return slices.Concat(meanEntries(), mlpEntries()) }

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

// addGather adds the launch that writes rows [rows(),len*dim]: the blocks of x plus pe [len,dim].
func (p blocks) addGather(b *kernels.Builder, x, pe, rows kernels.Ref) {
	p.add(b, "gather", x, pe, rows, p.rows()*p.len*p.dim)
}

// addScatter adds the launch that computes dx from the gradient of gather's rows.
func (p blocks) addScatter(b *kernels.Builder, drows, dx kernels.Ref) {
	p.add(b, "scatter", drows, 0, dx, p.batch*p.seq*p.heads*p.dim)
}

// add adds the launch of an op over n elements that reads x, and pe if it is not 0, and writes y.
func (p blocks) add(b *kernels.Builder, op string, x, pe, y kernels.Ref, n int64) {
	p.x, p.pe, p.y, p.documents = x, pe, y, b.Documents
	b.AddElements(b.Type.Name("compress_"+op), b.Type, n, &p)
}
