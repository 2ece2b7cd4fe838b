package pointwise

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// activationEntries returns entries without guards: they take all sizes.
func activationEntries() []kernels.Entry {
	return kernels.Entries(
		unary[pointwise.SiLU]("silu"), binary[pointwise.SiLUGrad]("silu_grad", "x"),
		unary[pointwise.Sigmoid]("sigmoid"), binary[pointwise.SigmoidGrad]("sigmoid_grad", "y"),
	)
}

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
)

// unary returns the entry of x -> y.
func unary[S any](kernel string) kernels.EntryFor[S] {
	return kernels.EntryFor[S]{
		Types: kernels.In(kernels.Float("x")).Out(kernels.Float("y")),
		Launches: func(b *kernels.Builder, _ S) {
			x, y := b.In[0], b.Out[0]
			b.AddElements(b.Type.Name(kernel), b.Type, y.N(), &unaryParams{x.Ref, y.Ref, y.N()})
		},
	}
}

// binary returns the entry of saved, dy -> dx.
func binary[S any](kernel, saved string) kernels.EntryFor[S] {
	return kernels.EntryFor[S]{
		Types: kernels.In(kernels.Float(saved, "dy")).Out(kernels.Float("dx")),
		Launches: func(b *kernels.Builder, _ S) {
			dx := b.Out[0]
			b.AddElements(b.Type.Name(kernel), b.Type, dx.N(), &binaryParams{b.In[0].Ref, b.In[1].Ref, dx.Ref, dx.N()})
		},
	}
}

// AddSiLU adds y = x sigmoid(x), of n elements.
func AddSiLU(b *kernels.Builder, x, y kernels.Ref, n int64) {
	b.AddElements(b.Type.Name("silu"), b.Type, n, &unaryParams{x, y, n})
}

// AddSiLUGrad adds dx from the argument x of SiLU and dy, of n elements.
func AddSiLUGrad(b *kernels.Builder, x, dy, dx kernels.Ref, n int64) {
	b.AddElements(b.Type.Name("silu_grad"), b.Type, n, &binaryParams{x, dy, dx, n})
}
