package norm

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
)

// softmaxEntries returns entries without guards: they take all sizes.
func softmaxEntries() []kernels.Entry {
	float := kernels.Float
	return kernels.Entries(
		kernels.EntryFor[norm.Softmax]{Types: kernels.In(float("x")).Out(float("y")), Launches: softmax},
		kernels.EntryFor[norm.SoftmaxGrad]{Types: kernels.In(float("y", "dy")).Out(float("dx")), Launches: softmaxGrad},
	)
}

// The arguments of softmax.cu.
type (
	softmaxParams struct {
		x, y       kernels.Ref
		rows, cols int64
	}
	softmaxGradParams struct {
		y, dy, dx  kernels.Ref
		rows, cols int64
	}
)

// softmax adds x [rows,cols] -> y.
func softmax(b *kernels.Builder, _ norm.Softmax) {
	x, y := b.In[0], b.Out[0]
	rows, cols := x.Rows()
	b.AddRows(b.Type.Name("softmax"), rows, cols, &softmaxParams{x.Ref, y.Ref, rows, cols})
}

// softmaxGrad adds the result y and dy -> dx.
func softmaxGrad(b *kernels.Builder, _ norm.SoftmaxGrad) {
	y, dy, dx := b.In[0], b.In[1], b.Out[0]
	rows, cols := y.Rows()
	b.AddRows(b.Type.Name("softmax_grad"), rows, cols, &softmaxGradParams{y.Ref, dy.Ref, dx.Ref, rows, cols})
}
