package ops

import (
	"errors"

	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// Add returns the sum of one or more inputs of the same shape, added in their order in one pass.
//
// The gradient of the first input is the node of the sum's gradient. Each other input gets a copy of it. If all shared one node,
// a change of one input's gradient would change the others: Gorgonia's solvers zero a gradient after use, and some of its ops
// work in place.
func Add(xs ...*gorgonia.Node) (*gorgonia.Node, error) { return Apply(AddOp{}, xs...) }

// AddOp is the Spec of Add: x0, x1, ... -> y, all of one shape.
type AddOp struct{}

func (AddOp) Name() string { return "add" }

func (AddOp) Infer(in []Operand) ([]Operand, error) {
	if len(in) == 0 {
		return nil, errors.New("no inputs")
	}
	names := make([]string, len(in))
	for i := range names {
		names[i] = numbered("x", i)
	}
	return inferElementwise(in, names...)
}

func (AddOp) Bind(k *cpu.Kernel, in, out []Arg) {
	byType(in[0].Dtype, bindAdd[float32], bindAdd[float64])(k, in, out[0])
}

// bindAdd adds to k a phase that sets y to the sum of in. y may be x0 or x1, not a later term.
func bindAdd[T cpu.Float](k *cpu.Kernel, in []Arg, y Arg) {
	bindRows(k, y.Elements(), 1, func(lo, hi int) {
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

func (AddOp) Grad(_ []bool, in gorgonia.Nodes, y, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	grads := gorgonia.Nodes{dy}
	for i := 1; i < len(in); i++ {
		dx, err := Apply(AddGradOp{y.ID(), i}, dy)
		if err != nil {
			return nil, err
		}
		grads = append(grads, dx)
	}
	return grads, nil
}

// AddGradOp is the Spec of the gradient of Add with respect to one of its inputs: dy -> a copy of dy. Its fields keep Gorgonia
// from merging the copies into one node. A machine that changes no value in place does not need the copy.
type AddGradOp struct {
	Sum   int64 // ID of the sum's node
	Input int   // index of the input
}

func (AddGradOp) Name() string                          { return "gradient of add" }
func (AddGradOp) Infer(in []Operand) ([]Operand, error) { return inferElementwise(in, "dy") }
func (AddGradOp) Bind(k *cpu.Kernel, in, out []Arg)     { AddOp{}.Bind(k, in, out) }

func (AddGradOp) Grad(_ []bool, _ gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return gorgonia.Nodes{dy}, nil
}
