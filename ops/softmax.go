package ops

import (
	"fmt"
	"math"

	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// Softmax returns exp(x)/sum(exp(x)) over the last axis of x. x has rank 1 or more. A row that holds only -Inf gives zeros.
func Softmax(x *gorgonia.Node) (*gorgonia.Node, error) { return Apply(SoftmaxOp{}, x) }

// SoftmaxOp is the Spec of Softmax: x [...,n] -> y [...,n].
type SoftmaxOp struct{}

func (SoftmaxOp) Name() string                          { return "softmax" }
func (SoftmaxOp) Infer(in []Operand) ([]Operand, error) { return inferRows(in, "x") }

// inferRows is inferElementwise for ops that need a last axis.
func inferRows(in []Operand, names ...string) ([]Operand, error) {
	out, err := inferElementwise(in, names...)
	if err == nil && in[0].Shape.Dims() == 0 {
		return nil, fmt.Errorf("%s is a scalar, want a last axis", names[0])
	}
	return out, err
}

func (SoftmaxOp) Bind(k *cpu.Kernel, in, out []Arg) {
	byType(in[0].Dtype, bindSoftmax[float32], bindSoftmax[float64])(k, in[0], out[0])
}

func bindSoftmax[T cpu.Float](k *cpu.Kernel, x, y Arg) {
	cols := x.last()
	bindRows(k, x.Elements()/cols, cols, func(lo, hi int) {
		for at := lo * cols; at < hi*cols; at += cols {
			row, dst := cpu.Slice[T](x.Buf)[at:][:cols], cpu.Slice[T](y.Buf)[at:][:cols]
			top := cpu.Max(row)
			if math.IsInf(float64(top), -1) {
				clear(dst)
				continue
			}
			cpu.Scale(dst, T(1/expSum(dst, row, top)))
		}
	})
}

// expBlock is the number of exponentials that are summed in the row's type. The sums of these blocks are added up in float64.
const expBlock = 1024

// expSum sets dst[i] = exp(x[i]-shift) and returns the sum. The sum is as exact for a long x as for a short one. dst may be shorter
// than x, with at least expBlock elements; then each block overwrites it.
func expSum[T cpu.Float](dst, x []T, shift T) float64 {
	sum := 0.0
	for i := 0; i < len(x); i += expBlock {
		block := x[i:min(len(x), i+expBlock)]
		to := dst
		if len(dst) >= len(x) {
			to = dst[i:]
		}
		sum += float64(cpu.ExpSum(to[:len(block)], block, 1, shift))
	}
	return sum
}

func (SoftmaxOp) Grad(_ []bool, _ gorgonia.Nodes, y, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return applyOutputs(SoftmaxGradOp{}, 1, y, dy)
}

// SoftmaxGradOp is the Spec of the gradient of Softmax: y, dy [...,n] -> dx = y*(dy - sum(y*dy)). It reads the result y, not x.
type SoftmaxGradOp struct{}

func (SoftmaxGradOp) Name() string                          { return "gradient of softmax" }
func (SoftmaxGradOp) Infer(in []Operand) ([]Operand, error) { return inferRows(in, "y", "dy") }

func (SoftmaxGradOp) Bind(k *cpu.Kernel, in, out []Arg) {
	byType(in[0].Dtype, bindSoftmaxGrad[float32], bindSoftmaxGrad[float64])(k, in[0], in[1], out[0])
}

func bindSoftmaxGrad[T cpu.Float](k *cpu.Kernel, y, dy, dx Arg) {
	cols := y.last()
	bindRows(k, y.Elements()/cols, cols, func(lo, hi int) {
		for at := lo * cols; at < hi*cols; at += cols {
			p, dp := cpu.Slice[T](y.Buf)[at:][:cols], cpu.Slice[T](dy.Buf)[at:][:cols]
			cpu.SoftmaxGrad(cpu.Slice[T](dx.Buf)[at:][:cols], p, dp, cpu.Dot(p, dp), 1)
		}
	})
}
