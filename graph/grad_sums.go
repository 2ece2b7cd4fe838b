package graph

import (
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// ZeroGrads makes the next run begin the sums of WithGradSums. It writes no memory: until that run n.Grad is the old
// sum.
func (m *Machine) ZeroGrads() error {
	if err := m.begin(); err != nil {
		return err
	}
	defer m.use.end()
	m.beginsSums = true
	return nil
}

// zeroSums follows a solver of Gorgonia that has set what n.Grad returned to zero. If that is a copy (on the host, or
// the input's dual value), the sum itself must be set to zero, too. It looks only at copies that the last run has made.
func (m *Machine) zeroSums() error {
	if !m.opts.gradSums || m.beginsSums {
		return nil
	}
	for _, v := range m.kept {
		s := &m.state[v.id]
		seen := s.dual
		if seen == nil && s.copied == m.run-1 {
			seen = s.staging
		}
		if !v.persists || seen == nil || !allZero(seen.Data()) {
			continue
		}
		if err := m.stream.Upload(v.arg, seen); err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
	}
	return nil
}

func (m *Machine) skips(s *step) bool {
	return s.phase == beginsSum && !m.beginsSums || s.phase == continuesSum && m.beginsSums ||
		(s.phase == reduces || s.phase == updates) && !m.stepping || s.phase == compares && !m.comparing
}

// addGradSums adds a sum for each derivative. It lasts from run to run, and the derivative's node shows it. After the
// step that computes a derivative come two steps: one begins the sum, one adds to it. A run executes one of the two. So
// no memory has to be set to zero, and the derivative itself does not stay in memory.
func (p *plan) addGradSums(o options) error {
	if !o.gradSums {
		return nil
	}
	inputs := o.sums // nil for all
	found, after := map[*G.Node]bool{}, map[*planValue][]*step{}
	for _, v := range slices.Clone(p.values) {
		if len(v.wrt) == 0 || inputs != nil && !slices.Contains(inputs, v.wrt[0]) {
			continue
		}
		found[v.wrt[0]] = true
		total := p.newValue(nil, "", fromKernel, v.arg.Operand)
		total.persists = true
		after[v] = []*step{
			{node: v.node, spec: pointwise.Add{}, in: []*planValue{v}, out: []*planValue{total}, phase: beginsSum},
			{node: v.node, spec: pointwise.Add{}, in: []*planValue{total, v}, out: []*planValue{total}, phase: continuesSum},
		}
		p.show(v, total)
	}
	for _, n := range inputs {
		if !found[n] {
			return fmt.Errorf("WithGradSums: %s has no derivative in the graph", describe(n))
		}
	}
	if len(found) == 0 {
		return errors.New("WithGradSums: no input has a derivative")
	}
	var steps []*step
	for _, s := range p.steps {
		steps = append(steps, s)
		for _, v := range s.out {
			steps = append(steps, after[v]...)
		}
	}
	p.steps = steps
	return nil
}
