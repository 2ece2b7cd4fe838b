package graph

import (
	"fmt"
	"slices"

	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/collective"
)

// hostName is the implementation of ops that run by their own Do.
const hostName = "host"

// dispatch gives each step the first implementation that accepts it, or leaves its op to the host. It also marks who
// reads each value.
func (p *plan) dispatch() error {
	steps := p.steps
	p.steps = nil
	for _, s := range steps {
		if err := forNode(s.node, func() error { return p.implement(s) }); err != nil {
			return err
		}
	}
	for _, s := range p.steps {
		for _, v := range s.in {
			v.kernelReads = v.kernelReads || s.kernel != nil
			v.hostReads = v.hostReads || s.kernel == nil
		}
	}
	return nil
}

func (p *plan) implement(s *step) error {
	call := p.call(s)
	_, collects := s.spec.(collective.Collective)
	collects = collects && p.group != nil
	kernel, impl, refused, err := bindFirst(p.backend, call, args(s.in), args(s.out))
	p.steps, s.refused = append(p.steps, s), append(s.refused, refused...)
	switch {
	case err != nil:
		return err
	case p.policy.Strict && slices.ContainsFunc(s.refused, Refusal.fallback):
		r := s.refused[slices.IndexFunc(s.refused, Refusal.fallback)]
		return fmt.Errorf("strict: %s: %w", r.Name, r.Why)
	case kernel == nil && (s.op == nil || collects): // nothing else runs it
		why := "the backend offers none"
		if len(refused) > 0 {
			why = joinRefusals(refused)
		}
		return fmt.Errorf("%s has no kernel for %s: %s", p.device.Kind, s.spec.Name(), why)
	case kernel == nil:
		return p.leaveToHost(s)
	}
	s.kernel, s.implementation, s.cost = kernel, impl.Name(), call.Cost()
	s.ownWork, s.side = -1, collects
	if k, ok := kernel.(KeepsWork); ok && k.KeepsWork() || s.side {
		s.ownWork = p.ownWork
		p.ownWork += alignUp(kernel.WorkBytes(), p.device.Alignment)
	} else {
		p.workspace = max(p.workspace, kernel.WorkBytes())
	}
	if p.device.Host || s.recomputed {
		return nil
	}
	if c, ok := s.spec.(spec.Checked); ok {
		s.in[c.CheckedInput()].addCheck(valueCheck{c, call.In, s.node})
	}
	if c, ok := spec.StartOf(s.spec, call.In); ok {
		s.in[c.Input].addCheck(valueCheck{c, call.In, s.node})
	}
	return nil
}

// addCheck adds c to the checks of v, unless v has the same check already: layers of a model read the same indices.
func (v *planValue) addCheck(c valueCheck) {
	same := func(x valueCheck) bool {
		return x.spec == c.spec && slices.EqualFunc(x.in, c.in,
			func(a, b spec.Operand) bool { return a.Dtype == b.Dtype && slices.Equal(a.Shape, b.Shape) })
	}
	if !slices.ContainsFunc(v.checks, same) {
		v.checks = append(v.checks, c)
	}
}

// leaveToHost makes s a step on the host for the main output alone. Each further output that is a node gets a step of
// its own: its op returns the output that the op of s has kept.
func (p *plan) leaveToHost(s *step) error {
	if p.policy.Strict && !p.device.Host {
		return fmt.Errorf("strict: %s has no kernel for this op", p.device.Kind)
	}
	for _, v := range slices.Concat(s.in, s.out) {
		if spec.IsHalf(v.arg.Dtype) {
			return fmt.Errorf("stored as %v, but no implementation could be bound", v.arg.Dtype)
		}
	}
	main := s.out[0]
	for _, v := range s.out[1:] {
		if v.node != nil {
			p.steps = append(p.steps, &step{node: v.node, op: v.node.Op(), in: []*planValue{main},
				out: []*planValue{v}, implementation: hostName})
			v.kind = fromHost
		}
	}
	s.out, s.implementation, s.host, main.kind = s.out[:1], hostName, hostCallOf(s.node, s.in), fromHost
	return memory.CheckTotal(main.arg.Operand.Bytes())
}

func args(values []*planValue) []spec.Arg {
	list := make([]spec.Arg, len(values))
	for i, v := range values {
		list[i] = v.arg
	}
	return list
}
