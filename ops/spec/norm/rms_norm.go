package norm

import (
	"cmp"
	"math"

	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// RMSNorm is the Spec of RMSNorm: x, weight -> y.
type RMSNorm struct {
	Eps float64 // added to the mean square
}

func (RMSNorm) Name() string       { return "rms norm" }
func (RMSNorm) InputNames() string { return "x weight" }

func (op RMSNorm) Infer(in []spec.Operand) ([]spec.Operand, error) {
	if err := spec.WantInputs(in, spec.FloatInput("x", 2).OrMore(), spec.FloatInput("weight", 1)); err != nil {
		return nil, err
	}
	return in[:1], cmp.Or(spec.WantPositiveFloat("eps", op.Eps), spec.WantShape("weight", in[1].Shape, in[0].Last()))
}

func (op RMSNorm) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.ByType(in[0].Dtype, bindRMSNorm[float32], bindRMSNorm[float64])(k, op.Eps, in[0], in[1], out[0])
}

func bindRMSNorm[T cpu.Float](k *cpu.Kernel, eps float64, x, w, y spec.Arg) {
	dim := x.Last()
	spec.BindRows(k, x.Elements()/dim, dim, func(lo, hi int) {
		for at := lo * dim; at < hi*dim; at += dim {
			row := cpu.Slice[T](x.Buf)[at:][:dim]
			cpu.MulScale(cpu.Slice[T](y.Buf)[at:][:dim], row, cpu.Slice[T](w.Buf), inverseRMS(row, eps))
		}
	})
}

// inverseRMS returns 1/sqrt(mean(x²) + eps).
func inverseRMS[T cpu.Float](x []T, eps float64) T {
	return T(1 / math.Sqrt(cpu.SumSquares(x)/float64(len(x))+eps))
}

func (op RMSNorm) Grad(_ []bool, in gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return spec.ApplyOutputs(RMSNormGrad(op), 2, in[0], in[1], dy)
}

// RMSNormGrad is the Spec of the gradient of RMSNorm: x, weight, dy -> dx, dweight. With r = 1/sqrt(mean(x²) + eps) and
// u = dy*weight:
//
//	dx = r*u - x*r³*(u·x)/dim,  dweight = sum over the rows of dy*x*r
//
// r is recomputed, since the row must be read anyway.
type RMSNormGrad struct {
	Eps float64 // as in RMSNorm
}

func (RMSNormGrad) Name() string { return "gradient of rms norm" }

func (op RMSNormGrad) Infer(in []spec.Operand) ([]spec.Operand, error) {
	return spec.InferWithMore(RMSNorm(op), 2, in, spec.LikeOutput{Name: "dy", Output: 0})
}

func (op RMSNormGrad) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.ByType(in[0].Dtype, bindRMSNormGrad[float32], bindRMSNormGrad[float64])(k, op.Eps, in, out)
}

// bindRMSNormGrad adds to k the phases of RMSNormGrad or, if there is a fourth input, of RMSNormGradAdd.
func bindRMSNormGrad[T cpu.Float](k *cpu.Kernel, eps float64, in, out []spec.Arg) {
	x, w, dy, dx, dw := in[0], in[1], in[2], out[0], out[1]
	dim := x.Last()
	rows := x.Elements() / dim
	blocks := cpu.CeilDiv(rows, spec.RowBlock)
	partial := cpu.Work[T](k, blocks*dim)
	terms := cpu.Scratch[T](k, dim)
	k.Phase(blocks, func(piece int, worker *cpu.Worker) {
		lo, hi := spec.PieceBounds(piece, spec.RowBlock, rows)
		weight, term, sum := cpu.Slice[T](w.Buf), terms.Local(worker), cpu.Slice[T](partial)[piece*dim:][:dim]
		clear(sum)
		for at := lo * dim; at < hi*dim; at += dim {
			row, drow, dst := cpu.Slice[T](x.Buf)[at:][:dim], cpu.Slice[T](dy.Buf)[at:][:dim], cpu.Slice[T](dx.Buf)[at:][:dim]
			r := inverseRMS(row, eps)
			cpu.MulScale(term, drow, row, r)
			cpu.Add(sum, sum, term)
			cpu.MulScale(dst, drow, weight, r)
			cpu.Axpy(-r*r*cpu.Dot(dst, row)/T(dim), row, dst)
			if len(in) > 3 {
				cpu.Add(dst, dst, cpu.Slice[T](in[3].Buf)[at:][:dim])
			}
		}
	})
	spec.BindSumBlocks[T](k, partial, blocks, dim, dw.Buf)
}

// RMSNormGradAdd is the Spec of the gradient of RMSNorm at the start of a block with a residual connection: x, weight,
// dy, residual -> dx = gradient of rms norm + residual, dweight. residual [...,dim] is the gradient that comes through
// the residual connection. The bits are those of RMSNormGrad followed by a pointwise.Add of its dx and residual, in
// either order. A machine uses it where a plan has these two ops. It has no constructor and no gradient.
type RMSNormGradAdd struct {
	Eps float64 // as in RMSNorm
}

func (RMSNormGradAdd) Name() string { return "gradient of rms norm with add" }

func (op RMSNormGradAdd) Infer(in []spec.Operand) ([]spec.Operand, error) {
	return spec.InferWithMore(RMSNorm(op), 2, in, spec.LikeOutput{Name: "dy", Output: 0},
		spec.LikeOutput{Name: "residual", Output: 0})
}

func (op RMSNormGradAdd) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	RMSNormGrad(op).Bind(k, in, out)
}
