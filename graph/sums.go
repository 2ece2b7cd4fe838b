package graph

import (
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/ops"
)

// WithGradSums makes the derivatives of inputs, all that have one if none is named, add up over the machine's runs as
// gorgonia.BindDualValues does for a TapeMachine: n.Grad is their sum. So the gradient of a large batch is that of smaller ones,
// RunAll for each but the last, and RunAndStep for that one.
//
// A sum begins with the first run, with the one after ZeroGrads and with the one after RunAndStep: that run writes it, the next
// ones add to it. Gorgonia's solvers set it to zero after their step, which does the same; an AdamW that steps by itself
// leaves it to ZeroGrads. After a run that fails the sums are undefined until ZeroGrads.
func WithGradSums(inputs ...*G.Node) Option {
	return func(o *options) { o.gradSums, o.sums = true, append(o.sums, inputs...) }
}

// ZeroGrads makes the next run begin the sums of WithGradSums anew. It touches no memory: until that run n.Grad is the sum
// so far.
func (m *Machine) ZeroGrads() error {
	if m.stream == nil {
		return errMachineClosed
	}
	m.begins = true
	return nil
}

// when says in which runs a step runs.
type when int

const (
	always       when = iota
	beginsSum         // in those that begin the sums: it writes a derivative to its sum
	continuesSum      // in the others: it adds the derivative
)

// leavesOut reports whether the run that is under way leaves s out.
func (m *Machine) leavesOut(s *step) bool {
	return s.runs == beginsSum && !m.begins || s.runs == continuesSum && m.begins
}

// sums gives derivatives sums that last over runs, which their nodes show, if o wants so. Right behind the step that computes a
// derivative one step begins its sum and one continues it: a run takes one of them, so no memory has to be set to zero, and
// the derivative itself does not live on.
func (p *plan) sums(o options) error {
	if !o.gradSums {
		return nil
	}
	inputs := o.sums // nil for all
	found, behind := map[*G.Node]bool{}, map[*operand][]*step{}
	for _, v := range slices.Clone(p.operands) {
		if len(v.wrt) == 0 || inputs != nil && !slices.Contains(inputs, v.wrt[0]) {
			continue
		}
		found[v.wrt[0]] = true
		total := p.newOperand(nil, "", fromKernel, v.arg.Operand)
		total.lasts = true
		behind[v] = []*step{
			{node: v.node, spec: ops.AddOp{}, in: []*operand{v}, out: []*operand{total}, runs: beginsSum},
			{node: v.node, spec: ops.AddOp{}, in: []*operand{total, v}, out: []*operand{total}, runs: continuesSum},
		}
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
	var steps []*step
	for _, s := range p.steps {
		steps = append(steps, s)
		for _, v := range s.out {
			steps = append(steps, behind[v]...)
		}
	}
	p.steps = steps
	return nil
}
