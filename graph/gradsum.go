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
	for _, s := range m.totals {
		if err := m.stream.Upload(s.arg, ops.NewValue(s.arg.Operand)); err != nil {
			return fmt.Errorf("graph: machine: zero gradients: %s: %w", s.name, err)
		}
	}
	return nil
}

// addSums puts steps that add derivatives to their sums, which the derivatives' nodes show, behind all others.
func (p *program) addSums(inputs G.Nodes) error {
	wanted := map[*G.Node]bool{}
	for _, n := range inputs {
		wanted[n] = true
	}
	for _, d := range p.derivs {
		if inputs != nil && !wanted[d.of] {
			continue
		}
		delete(wanted, d.of)
		s := p.of[d.by]
		total := p.newSlot(kernelSlot, ops.Operand{Dtype: graphType(s), Shape: s.arg.Shape})
		total.permanent = true
		st := step{node: d.by, spec: ops.AddOp{}, in: []*slot{total, s}, out: []*slot{total}}
		site := Site{Spec: st.spec, Policy: p.policy, In: []ops.Operand{total.arg.Operand, s.arg.Operand}, Out: []ops.Operand{total.arg.Operand}}
		if err := p.dispatch(&st, site); err != nil {
			return fmt.Errorf("sum of the gradients of %s: %w", describe(d.of), err)
		}
		if st.kernel == nil {
			return fmt.Errorf("sum of the gradients of %s: %s has no kernel for it", describe(d.of), p.device.Kind)
		}
		p.work = max(p.work, st.kernel.WorkBytes())
		st.counter = p.counter(st.chosen.name)
		s.readByKernel = true
		p.show(s, total)
		p.steps, p.totals = append(p.steps, st), append(p.totals, total)
	}
	if len(wanted) > 0 {
		i := slices.IndexFunc(inputs, func(n *G.Node) bool { return wanted[n] })
		return fmt.Errorf("the derivatives of %s are to add up, and it has none in the graph", describe(inputs[i]))
	}
	if inputs == nil && p.totals == nil {
		return errors.New("derivatives are to add up, and no input has one")
	}
	return nil
}
