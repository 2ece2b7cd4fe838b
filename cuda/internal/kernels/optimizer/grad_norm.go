package optimizer

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops/spec/optimizer"
)

func guardGradNorm(c *kernels.Call, _ optimizer.GradNorm) error {
	for _, g := range c.In[1:] {
		if _, err := kernels.TypeOf(g.Dtype); err != nil {
			return err
		}
	}
	return nil
}

// gradNorm adds hyper [10], gradients -> norm [1] of all gradients.
func gradNorm(b *kernels.Builder, _ optimizer.GradNorm) {
	var tensors []adamWTensor
	var runs []adamWRun
	for i, g := range b.In[1:] {
		tensors = append(tensors, adamWTensor{grad: g.Ref, n: g.N(), gradType: int32(g.Type())})
		runs = append(runs, runsOf(i, g.N())...)
	}
	p := &adamWParams{
		tensors: b.Array(tensors), runs: b.Array(runs), hyper: b.In[0].Ref, norm: b.Out[0].Ref, count: int64(len(runs)),
	}
	p.squares = b.Work(8 * p.count)
	b.AddLaunch("nsa_adamw_squares_f32", runGrid(runs), kernels.Threads(), 0, p)
	b.AddLaunch("nsa_adamw_norm_f64", kernels.Line(1), kernels.Line(1024), 0, p)
}
