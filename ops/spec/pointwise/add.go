package pointwise

import (
	"errors"

	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Add is the Spec of Add: x0, x1, ... -> y, all of one shape.
type Add struct{}

func (Add) Name() string { return "add" }

func (Add) Infer(in []spec.Operand) ([]spec.Operand, error) {
	if len(in) == 0 {
		return nil, errors.New("no inputs")
	}
	names := make([]string, len(in))
	for i := range names {
		names[i] = spec.Numbered("x", i)
	}
	return spec.InferElementwise(in, names...)
}

func (Add) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.ByType(in[0].Dtype, bindAdd[float32], bindAdd[float64])(k, in, out[0])
}

// bindAdd adds to k a phase that sets y to the sum of in. y may be x0 or x1, not a later term.
func bindAdd[T cpu.Float](k *cpu.Kernel, in []spec.Arg, y spec.Arg) {
	spec.BindRows(k, y.Elements(), 1, func(lo, hi int) {
		sum, first := cpu.Slice[T](y.Buf)[lo:hi], cpu.Slice[T](in[0].Buf)[lo:hi]
		if len(in) == 1 {
			copy(sum, first)
			return
		}
		cpu.Add(sum, first, cpu.Slice[T](in[1].Buf)[lo:hi])
		for _, x := range in[2:] {
			cpu.Add(sum, sum, cpu.Slice[T](x.Buf)[lo:hi])
		}
	})
}

func (Add) Grad(_ []bool, in gorgonia.Nodes, y, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	grads := gorgonia.Nodes{dy}
	for i := 1; i < len(in); i++ {
		dx, err := spec.Apply(AddGrad{y.ID(), i}, dy)
		if err != nil {
			return nil, err
		}
		grads = append(grads, dx)
	}
	return grads, nil
}

// AddGrad is the Spec of the gradient of Add with respect to one of its inputs: dy -> a copy of dy. Its fields keep
// Gorgonia from merging the copies into one node. A machine that changes no value in place does not need the copy.
type AddGrad struct {
	Sum   int64 // ID of the sum's node
	Input int   // index of the input
}

func (AddGrad) Name() string { return "gradient of add" }

func (AddGrad) Infer(in []spec.Operand) ([]spec.Operand, error) {
	return spec.InferElementwise(in, "dy")
}

func (AddGrad) Bind(k *cpu.Kernel, in, out []spec.Arg) { Add{}.Bind(k, in, out) }

func (AddGrad) Grad(_ []bool, _ gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return gorgonia.Nodes{dy}, nil
}
