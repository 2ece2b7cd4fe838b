package ops

import (
	"cmp"
	"math"

	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// RMSNorm returns x/sqrt(mean(x²) + eps)*weight over the last axis (arXiv 1910.07467): x [...,dim] of rank 2 or more,
// weight [dim]. eps is positive. x and weight have gradients.
func RMSNorm(x, weight *gorgonia.Node, eps float64) (*gorgonia.Node, error) {
	return Apply(RMSNormOp{eps}, x, weight)
}

// RMSNormOp is the Spec of RMSNorm: x, weight -> y.
type RMSNormOp struct {
	Eps float64 // added to the mean square
}

func (RMSNormOp) Name() string { return "rms norm" }

func (op RMSNormOp) Infer(in []Operand) ([]Operand, error) {
	if err := wantInputs(in, floatInput("x", 2).orMore(), floatInput("weight", 1)); err != nil {
		return nil, err
	}
	return in[:1], cmp.Or(wantPositiveFloat("eps", op.Eps), wantShape("weight", in[1].Shape, in[0].last()))
}

func (op RMSNormOp) Bind(k *cpu.Kernel, in, out []Arg) {
	byType(in[0].Dtype, bindRMSNorm[float32], bindRMSNorm[float64])(k, op.Eps, in[0], in[1], out[0])
}

func bindRMSNorm[T cpu.Float](k *cpu.Kernel, eps float64, x, w, y Arg) {
	dim := x.last()
	bindRows(k, x.Elements()/dim, dim, func(lo, hi int) {
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

func (op RMSNormOp) Grad(_ []bool, in gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return applyOutputs(RMSNormGradOp(op), 2, in[0], in[1], dy)
}

// RMSNormGradOp is the Spec of the gradient of RMSNorm: x, weight, dy -> dx, dweight. With r = 1/sqrt(mean(x²) + eps) and
// u = dy*weight:
//
//	dx = r*u - x*r³*(u·x)/dim,  dweight = sum over the rows of dy*x*r
//
// r is recomputed, since the row must be read anyway.
type RMSNormGradOp struct {
	Eps float64 // as in RMSNormOp
}

func (RMSNormGradOp) Name() string { return "gradient of rms norm" }

func (op RMSNormGradOp) Infer(in []Operand) ([]Operand, error) {
	return inferWithMore(RMSNormOp(op), 2, in, likeOutput{"dy", 0})
}

func (op RMSNormGradOp) Bind(k *cpu.Kernel, in, out []Arg) {
	byType(in[0].Dtype, bindRMSNormGrad[float32], bindRMSNormGrad[float64])(k, op.Eps, in, out)
}

// bindRMSNormGrad adds to k the phases of RMSNormGradOp or, if there is a fourth input, of RMSNormGradAddOp.
func bindRMSNormGrad[T cpu.Float](k *cpu.Kernel, eps float64, in, out []Arg) {
	x, w, dy, dx, dw := in[0], in[1], in[2], out[0], out[1]
	dim := x.last()
	rows := x.Elements() / dim
	blocks := cpu.CeilDiv(rows, rowBlock)
	partial := cpu.Work[T](k, blocks*dim)
	terms := cpu.Scratch[T](k, dim)
	k.Phase(blocks, func(piece int, worker *cpu.Worker) {
		lo, hi := pieceBounds(piece, rowBlock, rows)
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
	bindSumBlocks[T](k, partial, blocks, dim, dw.Buf)
}

// RMSNormGradAddOp is the Spec of the gradient of RMSNorm at the start of a block with a residual connection: x, weight, dy,
// residual -> dx = gradient of rms norm + residual, dweight. residual [...,dim] is the gradient that comes through the residual
// connection. The bits are those of RMSNormGradOp followed by an AddOp of its dx and residual, in either order. A machine uses
// it where a plan has these two ops. It has no constructor and no gradient.
type RMSNormGradAddOp struct {
	Eps float64 // as in RMSNormOp
}

func (RMSNormGradAddOp) Name() string { return "gradient of rms norm with add" }

func (op RMSNormGradAddOp) Infer(in []Operand) ([]Operand, error) {
	return inferWithMore(RMSNormOp(op), 2, in, likeOutput{"dy", 0}, likeOutput{"residual", 0})
}

func (op RMSNormGradAddOp) Bind(k *cpu.Kernel, in, out []Arg) {
	RMSNormGradOp(op).Bind(k, in, out)
}
