package graph

import (
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/ops"
)

// WithGradSums makes the derivatives of inputs, all that have one if none is named, add up over the machine's runs as
// gorgonia.BindDualValues does for a TapeMachine: n.Grad is the sum since it has been zero. Gorgonia's solvers zero it after
// their step; other ones leave that to ZeroGrads. After a run that fails the sums are undefined.
func WithGradSums(inputs ...*G.Node) Option {
	return func(o *options) { o.gradSums, o.sums = true, append(o.sums, inputs...) }
}

// ZeroGrads sets the sums of WithGradSums to zero.
func (m *Machine) ZeroGrads() error {
	if m.stream == nil {
		return errMachineClosed
	}
	for _, v := range m.operands {
		if !v.lasts || v.wrt == nil {
			continue
		}
		if err := m.stream.Upload(v.arg, ops.NewValue(v.arg.Operand)); err != nil {
			return fmt.Errorf("graph: machine: zero gradients: %s: %w", v.name, err)
		}
	}
	return nil
}

// sums puts steps that add derivatives to their sums, which the derivatives' nodes show, behind all others, if o wants so.
func (p *plan) sums(o options) error {
	if !o.gradSums {
		return nil
	}
	inputs := o.sums // nil for all
	found := map[*G.Node]bool{}
	for _, v := range slices.Clone(p.operands) {
		if len(v.wrt) == 0 || inputs != nil && !slices.Contains(inputs, v.wrt[0]) {
			continue
		}
		found[v.wrt[0]] = true
		total := p.newOperand(nil, "", fromKernel, v.arg.Operand)
		total.lasts = true
		p.steps = append(p.steps, &step{node: v.node, spec: ops.AddOp{}, in: []*operand{total, v}, out: []*operand{total}})
		p.show(v, total)
	}
	for _, n := range inputs {
		if !found[n] {
			return fmt.Errorf("the derivatives of %s are to add up, and it has none in the graph", describe(n))
		}
	}
	if len(found) == 0 {
		return errors.New("derivatives are to add up, and no input has one")
	}
	return nil
}
