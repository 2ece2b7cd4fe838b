package pointwise

import (
	"fmt"

	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Repeat is the Spec of Repeat: x [B,...] -> y [B*Times,...], each row Times times, one after the other.
type Repeat struct{ Times int }

func (Repeat) Name() string { return "repeat" }

func (op Repeat) Infer(in []spec.Operand) ([]spec.Operand, error) {
	return inferRepeat(in, "x", 1, op.Times)
}

func (op Repeat) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.ByType(in[0].Dtype, bindRepeat[float32], bindRepeat[float64])(k, op.Times, in[0], out[0])
}

func bindRepeat[T cpu.Float](k *cpu.Kernel, times int, x, y spec.Arg) {
	n := x.Elements() / x.Shape[0]
	spec.BindRows(k, y.Shape[0], n, func(lo, hi int) {
		from, to := cpu.Slice[T](x.Buf), cpu.Slice[T](y.Buf)
		for i := lo; i < hi; i++ {
			copy(to[i*n:(i+1)*n], from[i/times*n:])
		}
	})
}

func (op Repeat) Grad(_ []bool, _ gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return spec.ApplyOutputs(RepeatGrad(op), 1, dy)
}

// RepeatGrad is the Spec of the gradient of Repeat: dy [B*Times,...] -> dx [B,...], the sums of Times rows each.
type RepeatGrad struct{ Times int }

func (RepeatGrad) Name() string { return "gradient of repeat" }

func (op RepeatGrad) Infer(in []spec.Operand) ([]spec.Operand, error) {
	return inferRepeat(in, "dy", op.Times, 1)
}

func (op RepeatGrad) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.ByType(in[0].Dtype, bindRepeatGrad[float32], bindRepeatGrad[float64])(k, op.Times, in[0], out[0])
}

func bindRepeatGrad[T cpu.Float](k *cpu.Kernel, times int, dy, dx spec.Arg) {
	n := dx.Elements() / dx.Shape[0]
	spec.BindRows(k, dx.Elements(), 1, func(lo, hi int) {
		for lo < hi { // a part of a row
			row := lo / n
			end := min(hi, (row+1)*n)
			sum, from := cpu.Slice[T](dx.Buf)[lo:end], cpu.Slice[T](dy.Buf)[row*times*n+lo%n:]
			copy(sum, from)
			for i := 1; i < times; i++ {
				cpu.Add(sum, sum, from[i*n:][:len(sum)])
			}
			lo = end
		}
	})
}

func (op RepeatGrad) Grad(_ []bool, _ gorgonia.Nodes, _, d *gorgonia.Node) (gorgonia.Nodes, error) {
	return spec.ApplyOutputs(Repeat(op), 1, d)
}

// inferRepeat is the shape rule of an op that makes `to` rows of each `from` rows.
func inferRepeat(in []spec.Operand, name string, from, to int) ([]spec.Operand, error) {
	out, err := spec.InferElementwise(in, name)
	if err != nil {
		return nil, err
	}
	y := out[0]
	if from < 1 || to < 1 {
		return nil, fmt.Errorf("times is %d, want at least 1", min(from, to))
	}
	if y.Shape.Dims() == 0 || y.Shape[0]%from != 0 {
		return nil, fmt.Errorf("%s is %v, want a multiple of %d rows", name, y, from)
	}
	y.Shape = y.Shape.Clone()
	y.Shape[0] = y.Shape[0] / from * to
	return []spec.Operand{y}, nil
}
