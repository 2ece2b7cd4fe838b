package pointwise

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// swiGLUEntries returns entries without guards: they take all sizes.
func swiGLUEntries() []kernels.Entry { return kernels.Entries(swiGLUEntry(), swiGLUGradEntry()) }

// swigluGradParams is SwigluGradParams of elementwise.cu.
type swigluGradParams struct {
	gate, up, dy, dgate, dup kernels.Ref
	n                        int64
}

// maxOverlappingRows is the number of rows up to which SwiGLU overlaps the launch before it. With so few, as in
// decoding, the launches of linear layers around it do, too.
const maxOverlappingRows = 64

func swiGLUEntry() kernels.EntryFor[pointwise.SwiGLU] {
	return kernels.EntryFor[pointwise.SwiGLU]{
		Types: kernels.In(kernels.Float("gate", "up")).Out(kernels.Float("y")),
		Launches: func(b *kernels.Builder, _ pointwise.SwiGLU) {
			y := b.Out[0]
			b.AddElements(b.Type.Name("swiglu"), b.Type, y.N(), &binaryParams{b.In[0].Ref, b.In[1].Ref, y.Ref, y.N()})
			if rows, _ := y.Rows(); rows <= maxOverlappingRows {
				b.Overlap()
			}
		},
	}
}

func swiGLUGradEntry() kernels.EntryFor[pointwise.SwiGLUGrad] {
	return kernels.EntryFor[pointwise.SwiGLUGrad]{
		Types: kernels.In(kernels.Float("gate", "up", "dy")).Out(kernels.Float("dgate", "dup")),
		Launches: func(b *kernels.Builder, _ pointwise.SwiGLUGrad) {
			p := &swigluGradParams{b.In[0].Ref, b.In[1].Ref, b.In[2].Ref, b.Out[0].Ref, b.Out[1].Ref, b.Out[0].N()}
			b.AddElements(b.Type.Name("swiglu_grad"), b.Type, p.n, p)
		},
	}
}
