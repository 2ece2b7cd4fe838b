package compress

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/memory"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
)

// meanEntries returns entries without guards: they take all sizes.
func meanEntries() []kernels.Entry {
	return kernels.Entries(
		kernels.EntryFor[compress.Mean]{
			Types: kernels.In(kernels.Float("x"), kernels.Documents()).Out(kernels.Float("y")), Launches: mean,
		},
		kernels.EntryFor[compress.MeanGrad]{
			Types: kernels.In(kernels.Float("dy"), kernels.Documents()).Out(kernels.Float("dx")), Launches: meanGrad,
		},
	)
}

// mean adds x -> y.
func mean(b *kernels.Builder, op compress.Mean) {
	AddMean(b, b.In[0], b.Out[0], op.BlockLen, op.Stride)
}

// AddMean adds x [B,S,Hkv,D] -> y [B,Nc,Hkv,D], the mean of each block.
func AddMean(b *kernels.Builder, x, y kernels.Operand, length, stride int) {
	addMean(b, "mean", x, x, y, length, stride)
}

// meanGrad adds dy -> dx.
func meanGrad(b *kernels.Builder, op compress.MeanGrad) {
	addMean(b, "mean_grad", b.Out[0], b.In[0], b.Out[0], op.BlockLen, op.Stride)
}

// addMean adds the launch of mean or mean_grad. tokens is the operand with a row for each token.
func addMean(b *kernels.Builder, op string, tokens, x, y kernels.Operand, length, stride int) {
	p := blocksOf(tokens, length, stride)
	if p.blocks == 0 {
		memory.AddZeros(b)
		return
	}
	p.add(b, op, x.Ref, 0, y.Ref, y.N())
}
