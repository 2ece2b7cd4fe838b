package optimizer

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops/spec/optimizer"
)

func guardSumSquares(c *kernels.Call, _ optimizer.SumSquares) error {
	for _, g := range c.In {
		if _, err := kernels.TypeOf(g.Dtype); err != nil {
			return err
		}
	}
	return nil
}

// sumSquares adds tensors -> the sum of squares of each run of a tensor.
func sumSquares(b *kernels.Builder, _ optimizer.SumSquares) {
	var tensors []adamWTensor
	var runs []adamWRun
	for i, g := range b.In {
		tensors = append(tensors, adamWTensor{grad: g.Ref, n: g.N(), gradType: int32(g.Type())})
		runs = append(runs, runsOf(i, g.N())...)
	}
	b.AddLaunch("nsa_adamw_squares_f32", runGrid(runs), kernels.Threads(), 0, &adamWParams{
		tensors: b.Array(tensors), runs: b.Array(runs), squares: b.Out[0].Ref, count: int64(len(runs)),
	})
}

// gradNorm adds hyper [10], squares [n] -> norm [1].
func gradNorm(b *kernels.Builder, _ optimizer.GradNorm) {
	b.AddLaunch("nsa_adamw_norm_f64", kernels.Line(1), kernels.Line(1024), 0, &adamWParams{
		hyper: b.In[0].Ref, squares: b.In[1].Ref, norm: b.Out[0].Ref, count: b.In[1].N(),
	})
}
