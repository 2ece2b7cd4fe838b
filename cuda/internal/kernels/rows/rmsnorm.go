package rows

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// rmsNormRows are x, weight -> y, and x, weight, dy and an optional residual -> dx, dweight.
func rmsNormRows() []kernels.Row {
	return kernels.Rows(
		kernels.Op[ops.RMSNormOp]{Name: name, Storage: "tt>t", Guard: guardRMSNorm, Build: rmsNorm},
		kernels.Op[ops.RMSNormGradOp]{Name: name, Storage: "ttt>tw", Guard: guardRMSNormGrad, Build: rmsNormGrad},
		kernels.Op[ops.RMSNormGradAddOp]{Name: name, Storage: "tttt>tw", Guard: guardRMSNormGradAdd, Build: rmsNormGradAdd},
	)
}

// The arguments of rmsnorm.cu.
type (
	rmsNormParams struct {
		x, weight, y kernels.Ref
		rows, dim    int64
		eps          float32
		_            int32
	}
	rmsNormGradParams struct {
		x, weight, dy, residual, dx, partial kernels.Ref
		rows, dim, run                       int64
		eps                                  float32
		_                                    int32
	}
)

// maxNormDim is the longest row whose sum of dweight fits the 48 KB of shared memory that every device has.
const maxNormDim = 12288 - 256

func guardRMSNorm(_ *kernels.Builder, op ops.RMSNormOp) error {
	if !(op.Eps > 0) {
		return graph.Refuse(graph.ReasonShape, "eps is %v, want a positive number", op.Eps)
	}
	return nil
}

func guardRMSNormGrad(b *kernels.Builder, op ops.RMSNormGradOp) error {
	if _, dim := b.In[0].Rows(); dim > maxNormDim {
		return graph.Refuse(graph.ReasonShape, "dim is %d, want at most %d", dim, maxNormDim)
	}
	return guardRMSNorm(b, ops.RMSNormOp(op))
}

// rmsNorm adds x [rows,dim], weight [dim] -> y = x r weight, where r = 1/sqrt(mean(x²) + eps) of a row.
func rmsNorm(b *kernels.Builder, op ops.RMSNormOp) error {
	x, weight, y := b.In[0], b.In[1], b.Out[0]
	rows, dim := x.Rows()
	p := &rmsNormParams{x: x.Ref, weight: weight.Ref, y: y.Ref, rows: rows, dim: dim, eps: float32(op.Eps)}
	overRows(b, b.Type.Name("rmsnorm"), rows, dim, p)
	return nil
}

func guardRMSNormGradAdd(b *kernels.Builder, op ops.RMSNormGradAddOp) error {
	return guardRMSNormGrad(b, ops.RMSNormGradOp(op))
}

// rmsNormGradAdd adds x, weight, dy, residual -> dx + residual, dweight.
func rmsNormGradAdd(b *kernels.Builder, op ops.RMSNormGradAddOp) error {
	return rmsNormGrad(b, ops.RMSNormGradOp(op))
}

// rmsNormGrad adds x, weight, dy -> dx, dweight.
func rmsNormGrad(b *kernels.Builder, op ops.RMSNormGradOp) error {
	x, weight, dy, dx, dweight := b.In[0], b.In[1], b.In[2], b.Out[0], b.Out[1]
	rows, dim := x.Rows()
	run := runOf(rows)
	parts := kernels.Pieces(rows, run)
	p := &rmsNormGradParams{
		x: x.Ref, weight: weight.Ref, dy: dy.Ref, dx: dx.Ref, partial: b.Work(parts * dim * 4),
		rows: rows, dim: dim, run: run, eps: float32(op.Eps),
	}
	if len(b.In) == 4 {
		p.residual = b.In[3].Ref
	}
	block := kernels.RowThreads(dim)
	b.Launch(b.Type.Name("rmsnorm_grad"), kernels.Line(parts), block, int64(block.Y)*dim*4, p)
	SumParts(b, Parts{Partial: p.partial, Y: dweight.Ref, Count: parts, Cols: dim, Out: b.TypeOf(dweight)})
	return nil
}
