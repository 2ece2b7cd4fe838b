package compress

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/memory"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
)

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

// mean adds x [B,S,Hkv,D] -> y [B,Nc,Hkv,D], the mean of each block.
func mean(b *kernels.Builder, op compress.Mean) { addMean(b, "mean", b.In[0], op.BlockLen, op.Stride) }

// meanGrad adds dy -> dx.
func meanGrad(b *kernels.Builder, op compress.MeanGrad) {
	addMean(b, "mean_grad", b.Out[0], op.BlockLen, op.Stride)
}

// addMean adds the launch of mean or mean_grad. tokens is the operand with a row for each token.
func addMean(b *kernels.Builder, op string, tokens kernels.Operand, length, stride int) {
	p := blocksOf(tokens, length, stride)
	if p.blocks == 0 {
		memory.AddZeros(b)
		return
	}
	p.add(b, op, b.In[0].Ref, 0, b.Out[0].Ref, b.Out[0].N())
}
