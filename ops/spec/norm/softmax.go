package norm

import (
	"fmt"
	"math"

	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// large is the largest magnitude of a scaled score or an LSE that is subtracted after the scaling. Larger numbers are
// too coarse in float32: subtracting them would change probabilities by more than 2e-6, and by any factor for scores of
// 1e9.
const large = 64

// IsLarge reports whether a scaled score or an LSE is too large to be subtracted after the scaling: see large.
func IsLarge[T cpu.Float](x T) bool { return x > large || x < -large }

// Softmax is the Spec of Softmax: x [...,n] -> y [...,n].
type Softmax struct{}

func (Softmax) Name() string       { return "softmax" }
func (Softmax) InputNames() string { return "x" }

func (Softmax) Infer(in []spec.Operand) ([]spec.Operand, error) { return inferRows(in, "x") }

// inferRows is spec.InferElementwise for ops that need a last axis.
func inferRows(in []spec.Operand, names ...string) ([]spec.Operand, error) {
	out, err := spec.InferElementwise(in, names...)
	if err == nil && in[0].Shape.Dims() == 0 {
		return nil, fmt.Errorf("%s is a scalar, want a last axis", names[0])
	}
	return out, err
}

func (Softmax) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.ByType(in[0].Dtype, bindSoftmax[float32], bindSoftmax[float64])(k, in[0], out[0])
}

func bindSoftmax[T cpu.Float](k *cpu.Kernel, x, y spec.Arg) {
	cols := x.Last()
	spec.BindRows(k, x.Elements()/cols, cols, func(lo, hi int) {
		for at := lo * cols; at < hi*cols; at += cols {
			row, dst := cpu.Slice[T](x.Buf)[at:][:cols], cpu.Slice[T](y.Buf)[at:][:cols]
			top := cpu.Max(row)
			if math.IsInf(float64(top), -1) {
				clear(dst)
				continue
			}
			cpu.Scale(dst, T(1/ExpSum(dst, row, top)))
		}
	})
}

// ExpBlock is the number of exponentials that are summed in the row's type. The sums of these blocks are added up in
// float64.
const ExpBlock = 1024

// ExpSum sets dst[i] = exp(x[i]-shift) and returns the sum. The sum is as exact for a long x as for a short one. dst
// may be shorter than x, with at least ExpBlock elements; then each block overwrites it.
func ExpSum[T cpu.Float](dst, x []T, shift T) float64 {
	sum := 0.0
	for i := 0; i < len(x); i += ExpBlock {
		block := x[i:min(len(x), i+ExpBlock)]
		to := dst
		if len(dst) >= len(x) {
			to = dst[i:]
		}
		sum += float64(cpu.ExpSum(to[:len(block)], block, 1, shift))
	}
	return sum
}

func (Softmax) Grad(_ []bool, _ gorgonia.Nodes, y, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return spec.ApplyOutputs(SoftmaxGrad{}, 1, y, dy)
}

// SoftmaxGrad is the Spec of the gradient of Softmax: y, dy [...,n] -> dx = y*(dy - sum(y*dy)). It reads the result y,
// not x.
type SoftmaxGrad struct{}

func (SoftmaxGrad) Name() string { return "gradient of softmax" }

func (SoftmaxGrad) Infer(in []spec.Operand) ([]spec.Operand, error) { return inferRows(in, "y", "dy") }

func (SoftmaxGrad) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.ByType(in[0].Dtype, bindSoftmaxGrad[float32], bindSoftmaxGrad[float64])(k, in[0], in[1], out[0])
}

func bindSoftmaxGrad[T cpu.Float](k *cpu.Kernel, y, dy, dx spec.Arg) {
	cols := y.Last()
	spec.BindRows(k, y.Elements()/cols, cols, func(lo, hi int) {
		for at := lo * cols; at < hi*cols; at += cols {
			p, dp := cpu.Slice[T](y.Buf)[at:][:cols], cpu.Slice[T](dy.Buf)[at:][:cols]
			cpu.SoftmaxGrad(cpu.Slice[T](dx.Buf)[at:][:cols], p, dp, cpu.Dot(p, dp), 1)
		}
	})
}
