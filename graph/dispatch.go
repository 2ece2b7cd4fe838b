package graph

import (
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// hostName is the name of ops that run by their own Do.
const hostName = "host"

// dispatch gives each step the first implementation that takes it, or leaves its op to the host, and notes who reads a value.
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
		name := s.implementation
		if s.counter = slices.Index(p.names, name); s.counter < 0 {
			s.counter, p.names = len(p.names), append(p.names, name)
		}
	}
	return nil
}

// implement adds the step with its implementation.
func (p *plan) implement(s *step) error {
	site := p.site(s)
	kernel, by, err := choose(p.backend, site, args(s.in), args(s.out), func(r Refusal) error {
		if p.policy.Strict {
			return fmt.Errorf("strict: %s: %w", r.Name, r.Why)
		}
		s.refused = append(s.refused, r)
		return nil
	})
	p.steps = append(p.steps, s)
	switch {
	case err != nil:
		return err
	case kernel == nil:
		return p.leaveToHost(s)
	}
	s.kernel, s.implementation, s.cost = kernel, by.Name(), by.Cost(site)
	p.workspace = max(p.workspace, kernel.WorkBytes())
	if c, ok := s.spec.(ops.Checked); ok && s.op != nil && !p.device.Host {
		v := s.in[c.CheckedInput()]
		v.checks = append(v.checks, check{c, ops.InputsOf(s.op), s.node})
	}
	return nil
}

// leaveToHost makes s the main output's step and adds one for each further output that is a node: there the op keeps them.
func (p *plan) leaveToHost(s *step) error {
	if s.op == nil {
		return fmt.Errorf("%s: %s has no kernel for it", s.spec.Name(), p.device.Kind)
	}
	if p.policy.Strict && !p.device.Host {
		return fmt.Errorf("strict: %s has no kernel for it", p.device.Kind)
	}
	for _, v := range slices.Concat(s.in, s.out) {
		if ops.IsHalf(v.arg.Dtype) {
			return fmt.Errorf("a guard takes it in %v, and nothing runs it", v.arg.Dtype)
		}
	}
	main := s.out[0]
	for _, v := range s.out[1:] {
		if v.node != nil {
			p.steps = append(p.steps, &step{node: v.node, op: v.node.Op(), in: []*operand{main}, out: []*operand{v}, implementation: hostName})
			v.kind = fromHost
		}
	}
	s.out, s.implementation, main.kind = s.out[:1], hostName, fromHost
	_, ok := s.op.(G.UsePreallocDoer)
	// Gorgonia's TapeMachine gives such ops their result's memory, and the Do of some is not equivalent.
	s.prealloc = ok && s.op.CallsExtern() && s.op.ReturnsPtr() && !s.node.IsScalar()
	return cpu.CheckMemory(main.arg.Operand.Bytes())
}

func args(values []*operand) []ops.Arg {
	list := make([]ops.Arg, len(values))
	for i, v := range values {
		list[i] = v.arg
	}
	return list
}

// accepts reports whether one of the implementations takes the site, as far as guards tell.
func accepts(offers []Implementation, site Site) (bool, error) {
	for _, i := range offers {
		err := i.Guard(site)
		if err == nil {
			return true, nil
		}
		if u := (*Unsupported)(nil); !errors.As(err, &u) {
			return false, fmt.Errorf("%s: %w", i.Name(), err)
		}
	}
	return false, nil
}

// choose binds the first implementation that takes the site and returns both, or nil where there is none.
// refused, if not nil, is told of each that was preferred; its error ends the search.
func choose(b Backend, site Site, in, out []ops.Arg, refused func(Refusal) error) (Kernel, Implementation, error) {
	for _, i := range b.Offers(site) {
		err := i.Guard(site)
		if err == nil {
			var k Kernel
			if k, err = i.Bind(site, in, out); err == nil {
				return k, i, nil
			}
		}
		var u *Unsupported
		if !errors.As(err, &u) {
			return nil, nil, fmt.Errorf("%s: %w", i.Name(), err)
		}
		if refused != nil {
			if err := refused(Refusal{i.Name(), u}); err != nil {
				return nil, nil, err
			}
		}
	}
	return nil, nil, nil
}
