package graph

import (
	"fmt"

	G "gorgonia.org/gorgonia"
)

// newPlan makes the plan of g, pass by pass.
func newPlan(g *G.ExprGraph, o options) (*plan, error) {
	p, err := emptyPlan(o)
	if err != nil {
		return nil, err
	}
	for _, pass := range []func() error{
		func() error { return p.lower(g, o.keep) }, // the graph's nodes become steps over values
		p.checkRanks, // collective ops fit the group
		func() error { return p.markBoundaries(o) }, // what stays in memory for the backward pass
		p.setTypes, // each value gets its type, casts are steps
		p.fuse,     // one step replaces several
		func() error { return p.recomputeBackward(o) }, // the backward pass computes activations again
		func() error { return p.addGradSums(o) },       // derivatives are summed over runs
		func() error { return p.addReductions(o) },     // gradients are averaged over ranks
		func() error { return p.addUpdate(o) },         // the update of weights follows
		p.joinValues,                                   // values that a kernel takes as one get adjacent places
		p.dispatch,                                     // each step gets an implementation
		p.markUpdated,                                  // inputs that steps write to are marked
		p.layout,                                       // each value gets its place in the arena
	} {
		if err := pass(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// emptyPlan returns a plan without steps.
func emptyPlan(o options) (*plan, error) {
	p := &plan{backend: o.backend, device: o.backend.Device(), policy: *o.policy, constant: o.constant,
		valueByNode: map[*G.Node]*planValue{}, unfused: map[string]int{}, owners: map[*planValue]int{}}
	if o.hasGroup && o.group.Size() > 1 {
		p.group, p.sharded = o.group, o.sharded
	}
	var err error
	if p.half, err = o.precision.half(); err != nil {
		return nil, err
	}
	if err := o.precision.check(p.device); err != nil {
		return nil, err
	}
	if a := p.device.Alignment; a < 8 || a&(a-1) != 0 {
		return nil, fmt.Errorf("alignment of the device is %d, want a power of two, at least 8", a)
	}
	if o.watches() {
		p.policy.Unfused = []string{UnfusedAll} // the result of each op is checked
	}
	return p, p.policy.check()
}
