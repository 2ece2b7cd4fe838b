package pointwise

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/memory"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// repeatEntries returns entries without guards: they take all sizes.
func repeatEntries() []kernels.Entry {
	return kernels.Entries(
		kernels.EntryFor[pointwise.Repeat]{
			Types:    kernels.In(kernels.Float("x")).Out(kernels.Float("y")),
			Launches: func(b *kernels.Builder, op pointwise.Repeat) { repeat(b, op.Times) },
		},
		kernels.EntryFor[pointwise.RepeatGrad]{
			Types:    kernels.In(kernels.Float("dy")).Out(kernels.Float("dx")),
			Launches: func(b *kernels.Builder, op pointwise.RepeatGrad) { repeatGrad(b, op.Times) },
		},
	)
}

// repeat adds a copy for each row of y.
func repeat(b *kernels.Builder, times int) {
	x, y := b.In[0], b.Out[0]
	bytes := int64(x.Bytes()) / x.Dim(0)
	for i := range y.Dim(0) {
		memory.AddCopies(b, memory.Copy{From: x.Ref.Plus(i / int64(times) * bytes), To: y.Ref.Plus(i * bytes), Bytes: bytes})
	}
}

// repeatGrad adds a sum for each row of dx.
func repeatGrad(b *kernels.Builder, times int) {
	dx := b.Out[0]
	bytes := int64(dx.Bytes()) / dx.Dim(0)
	row := func(o kernels.Operand, i int64) kernels.Operand {
		o.Shape, o.Ref = o.Shape[1:], o.Ref.Plus(i*bytes)
		return o
	}
	for i := range dx.Dim(0) {
		var terms []kernels.Operand
		for k := range int64(times) {
			terms = append(terms, row(b.In[0], i*int64(times)+k))
		}
		AddSum(b, row(dx, i), terms...)
	}
}
