package norm

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/sums"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
)

// rmsNormEntries returns the entries of RMSNorm, which takes all sizes, and of its gradients.
func rmsNormEntries() []kernels.Entry {
	x, weight, dweight := kernels.Mixed("x"), kernels.Float32("weight"), kernels.WeightGrad("dweight")
	float := kernels.Float
	return kernels.Entries(
		kernels.EntryFor[norm.RMSNorm]{Types: kernels.In(x, weight).Out(float("y")), Launches: rmsNorm},
		kernels.EntryFor[norm.RMSNormGrad]{
			Types: kernels.In(x, weight, float("dy")).Out(float("dx"), dweight),
			Guard: guardRMSNormGrad[norm.RMSNormGrad], Launches: rmsNormGrad[norm.RMSNormGrad],
		},
		kernels.EntryFor[norm.RMSNormGradAdd]{
			Types: kernels.In(x, weight, float("dy", "residual")).Out(float("dx"), dweight),
			Guard: guardRMSNormGrad[norm.RMSNormGradAdd], Launches: rmsNormGrad[norm.RMSNormGradAdd],
		},
	)
}

// The arguments of rms_norm.cu.
type (
	rmsNormParams struct {
		x, weight, y kernels.Ref
		rows, dim    int64
		eps          float32
		xType        int32
	}
	rmsNormGradParams struct {
		x, weight, dy, residual, dx, partial kernels.Ref
		rows, dim, run                       int64
		eps                                  float32
		xType                                int32
	}
)

// maxNormDim is the longest row whose sum of dweight fits the 48 KB of shared memory that every device has.
const maxNormDim = 12288 - 256

// rmsNorm adds x [rows,dim], weight [dim] -> y = x r weight, where r = 1/sqrt(mean(x²) + eps) of a row.
func rmsNorm(b *kernels.Builder, op norm.RMSNorm) {
	x, weight, y := b.In[0], b.In[1], b.Out[0]
	rows, dim := x.Rows()
	p := &rmsNormParams{x.Ref, weight.Ref, y.Ref, rows, dim, float32(op.Eps), int32(x.Type())}
	b.AddRows(b.Type.Name("rms_norm"), rows, dim, p)
	if weight.Constant { // as in decoding, where the next launch overlaps, too
		b.Overlap()
	}
}

func guardRMSNormGrad[S norm.RMSNormGrad | norm.RMSNormGradAdd](c *kernels.Call, _ S) error {
	if _, dim := c.In[0].Rows(); dim > maxNormDim {
		return graph.Refuse(graph.ReasonShape, "dim is %d, want at most %d", dim, maxNormDim)
	}
	return nil
}

// rmsNormGrad adds x, weight, dy and an optional residual -> dx + residual, dweight.
func rmsNormGrad[S norm.RMSNormGrad | norm.RMSNormGradAdd](b *kernels.Builder, op S) {
	x, weight, dy, dx, dweight := b.In[0], b.In[1], b.In[2], b.Out[0], b.Out[1]
	rows, dim := x.Rows()
	run := sums.RowsOfPart(rows)
	parts := kernels.CeilDiv(rows, run)
	p := &rmsNormGradParams{
		x: x.Ref, weight: weight.Ref, dy: dy.Ref, dx: dx.Ref, partial: b.Work(parts * dim * 4),
		rows: rows, dim: dim, run: run, eps: float32(norm.RMSNormGrad(op).Eps), xType: int32(x.Type()),
	}
	if len(b.In) == 4 {
		p.residual = b.In[3].Ref
	}
	block := kernels.RowThreads(dim)
	b.AddLaunch(b.Type.Name("rms_norm_grad"), kernels.Line(parts), block, int64(block.Y)*dim*4, p)
	sums.AddParts(b, sums.Parts{Partial: p.partial, Y: dweight.Ref, Count: parts, Cols: dim, Out: dweight.Type()})
}
