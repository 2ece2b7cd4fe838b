package graph

import (
	"errors"
	"fmt"
	"slices"

	"gorgonia.org/tensor"
)

func (p *plan) markBoundaries(o options) error {
	if !o.recompute {
		return nil
	}
	if len(o.boundaries) == 0 {
		return errors.New("recompute: no boundaries")
	}
	derivs := p.derivatives()
	if len(derivs) == 0 {
		return errors.New("recompute: the graph has no derivatives")
	}
	for _, n := range o.boundaries {
		v, ok := p.valueByNode[n]
		switch {
		case !ok:
			return fmt.Errorf("recompute: boundary %s is not in the graph", describe(n))
		case v.kind != fromKernel:
			return fmt.Errorf("recompute: boundary %s is an input or a constant", describe(n))
		}
		v.boundary = true
	}
	var kept []*planValue // kept ones that are neither small, derivatives nor boundaries
	for _, v := range p.values {
		if v.keep && !v.small && !v.boundary && !slices.Contains(derivs, v) {
			kept = append(kept, v)
		}
	}
	forward, writers := p.stepsBefore(kept), p.writers()
	for _, n := range o.boundaries {
		if !forward[writers[p.valueByNode[n]]] {
			return fmt.Errorf("recompute: boundary %s is not inside the forward pass: no result depends on it, except derivatives", describe(n))
		}
	}
	return nil
}

func (p *plan) derivatives() (list []*planValue) {
	for _, n := range p.order.nodes {
		if n.Type() == nil { // a statement
			continue
		}
		if d, ok := p.valueByNode[n.Deriv()]; ok {
			list = append(list, d)
		}
	}
	return list
}

func (p *plan) writers() map[*planValue]*step {
	w := map[*planValue]*step{}
	for _, s := range p.steps {
		for _, v := range s.out {
			w[v] = s
		}
	}
	return w
}

func (p *plan) stepsBefore(values []*planValue) map[*step]bool {
	writers, before := p.writers(), map[*step]bool{}
	for todo := slices.Clone(values); len(todo) > 0; {
		s := writers[todo[len(todo)-1]]
		todo = todo[:len(todo)-1]
		if s != nil && !before[s] {
			before[s] = true
			todo = append(todo, s.in...)
		}
	}
	return before
}

// recomputer is the state of the pass recomputeBackward.
type recomputer struct {
	plan       *plan
	writers    map[*planValue]*step
	repeatable map[*step]bool            // steps that a boundary depends on: they may run again
	repeated   map[*planValue]*planValue // results of repeated steps, by the first results
	steps      []*step                   // the new steps of the plan so far
}

// recomputeBackward repeats steps of the forward pass, before the first step of the backward pass that reads their
// results. It runs after fuse: so a step and its repetition are one Spec on the same operands and have the same bits.
func (p *plan) recomputeBackward(o options) error {
	if !o.recompute {
		return nil
	}
	var boundaries []*planValue
	for _, v := range p.values {
		if v.boundary {
			boundaries = append(boundaries, v)
		}
	}
	r := &recomputer{plan: p, writers: p.writers(), repeatable: p.stepsBefore(boundaries),
		repeated: map[*planValue]*planValue{}}
	forward := p.stepsBefore(append(p.results(), boundaries...))
	for _, s := range p.steps {
		if !forward[s] {
			s.in = r.inputs(s)
		}
		r.steps = append(r.steps, s)
	}
	p.steps = r.steps
	return nil
}

// results returns the values that are kept, not only because they are small, and are neither derivatives nor read to
// compute one, such as the loss.
func (p *plan) results() (list []*planValue) {
	derivs := p.derivatives()
	read := map[*planValue]bool{}
	for s := range p.stepsBefore(derivs) {
		for _, v := range s.in {
			read[v] = true
		}
	}
	for _, v := range p.values {
		if v.keep && !v.small && !read[v] && !slices.Contains(derivs, v) {
			list = append(list, v)
		}
	}
	return list
}

// inputs returns the values that s reads in the backward pass. It first adds the steps that compute them again.
func (r *recomputer) inputs(s *step) []*planValue {
	in := slices.Clone(s.in)
	for i, v := range in {
		w := r.writers[v]
		if w == nil || !r.repeatable[w] || w.spec == nil || v.keep || v.persists || v.boundary || !isFloat(v) {
			continue
		}
		if r.repeated[v] == nil {
			r.repeat(w)
		}
		in[i] = r.repeated[v]
	}
	return in
}

// repeat adds s again, after repetitions of the steps that it needs.
func (r *recomputer) repeat(s *step) {
	again := &step{node: s.node, spec: s.spec, in: r.inputs(s), rule: s.rule, replaces: s.replaces,
		refused: s.refused, recomputed: true}
	for _, v := range s.out {
		c := r.plan.newValue(nil, v.name+", recomputed", fromKernel, v.arg.Operand)
		r.repeated[v], again.out = c, append(again.out, c)
	}
	r.steps = append(r.steps, again)
}

func isFloat(v *planValue) bool {
	return graphType(v.arg.Dtype) == tensor.Float32 || v.arg.Dtype == tensor.Float64
}
