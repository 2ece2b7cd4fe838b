// Package opcases is the one table of cases for the ops of package ops: for each op its sizes, its inputs, and what the oracle
// makes of them, forward and backward. The CPU's tests run it, and so may those of any device.
//
// A case is built by an op's constructor. Plan breaks it down to the calls of Specs, so that a device runs it without graphs:
//
//	for _, c := range opcases.All() {
//		plan, err := c.Plan()
//		arrays := make([]T, plan.Arrays)  // T: an operand on the device
//		...                               // arrays[i] = upload(plan.Inputs[i])
//		for _, call := range plan.Calls {
//			...                           // run call.Spec from arrays[call.In...] to arrays[call.Out...]
//		}
//		...                               // compare arrays[plan.Out[i]] with c.Outputs(in)[i] and
//	}                                     // arrays[plan.Grads[i]] with c.Gradients(in, dy)[i]
//
// Array.Operand gives the type and shape of an input; those of an output follow from Spec.Infer. Where the device stores
// inputs rounded, the rounded ones go to the oracle: Outputs and Gradients take their Tensors. Chosen blocks (Case.Choice) are compared
// by CheckChoice.
package opcases

import (
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Case is an op at one size.
type Case struct {
	Name   string
	Inputs []Array
	// Build applies the op's constructor.
	Build func(in []*G.Node) (*G.Node, error)
	// Outputs returns the oracle's outputs for inputs of the case's shapes, the main one first; nil for one that is not
	// compared, and for a chosen index.
	Outputs func(in []*ref.Tensor) []*ref.Tensor
	// Gradients returns the oracle's gradient of each input for the gradient dy of the main output, nil for indices. It is
	// nil for an op without a gradient.
	Gradients func(in []*ref.Tensor, dy *ref.Tensor) []*ref.Tensor
	// Size says how long the case takes.
	Size Size
	// Mask is that of an attention op.
	Mask ref.Mask
	// Choice is set for SelectBlocks: CheckChoice looks at its output, since rounding may change an order of scores.
	Choice *ops.Params
}

// Size is how long a case takes on a CPU.
type Size int

// The sizes.
const (
	Small Size = iota // in any type, in graphs, and by central differences
	Large             // several pieces of work in each phase: in one type, without graphs
	Huge              // on a GPU alone
)

// Call is one Spec to be run. In and Out are indices of arrays: those of Plan.Inputs, then the outputs of the calls.
type Call struct {
	Spec    ops.Spec
	In, Out []int
}

// Plan is a case as calls of Specs, forward and backward.
type Plan struct {
	Inputs []Array // those of the case and, where the op has a gradient, dy: the gradient of the main output
	Calls  []Call
	Arrays int   // number of arrays
	Out    []int // outputs of the op, in the order of Case.Outputs
	Grads  []int // gradient of each input; -1 for one that has none. Nil for an op without a gradient
}

// Plan returns the calls of the case.
func (c Case) Plan() (*Plan, error) {
	g, p := G.NewGraph(), &Plan{Inputs: slices.Clone(c.Inputs)}
	var in, grads G.Nodes
	for _, a := range c.Inputs {
		in = append(in, a.Node(g, tensor.Float64))
	}
	out, err := c.Build(in)
	if err == nil && c.Gradients != nil {
		dy := Normal("dy", 99, out.Shape()...)
		p.Inputs = append(p.Inputs, dy)
		grads, err = out.Op().(G.SDOp).SymDiff(in, out, dy.Node(g, tensor.Float64))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	p.Arrays = len(p.Inputs)
	given := map[string]int{}
	for i, a := range p.Inputs {
		given[a.Name] = i
	}
	outputs := map[int64][]int{} // of the op behind a node
	for _, n := range g.AllNodes() {
		var in [][]int
		for it := g.From(n.ID()); it.Next(); {
			in = append(in, outputs[it.Node().ID()])
		}
		if spec, ok := ops.SpecOf(n.Op()); ok {
			call := Call{Spec: spec}
			for _, list := range in {
				call.In = append(call.In, list[0])
			}
			for range ops.OutputsOf(n.Op()) {
				call.Out = append(call.Out, p.Arrays)
				p.Arrays++
			}
			p.Calls, outputs[n.ID()] = append(p.Calls, call), call.Out
		} else if index, ok := ops.OutputIndex(n.Op()); ok {
			outputs[n.ID()] = in[0][index : index+1]
		} else {
			outputs[n.ID()] = []int{given[n.Name()]}
		}
	}
	p.Out = outputs[out.ID()]
	for _, n := range grads {
		if n == nil {
			p.Grads = append(p.Grads, -1)
		} else {
			p.Grads = append(p.Grads, outputs[n.ID()][0])
		}
	}
	return p, nil
}

// All returns the cases of all ops of graphs, and of the fused Specs that a machine puts in their place.
func All() []Case {
	list := Layers()
	for _, s := range AttentionSizes() {
		list = append(list, s.Cases()...)
	}
	return list
}
