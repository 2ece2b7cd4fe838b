package graph

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/collective"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// checkRanks returns an error if the ranks of a collective op of the graph do not divide those of the machine.
func (p *plan) checkRanks() error {
	ranks := 1
	if p.group != nil {
		ranks = p.group.Size()
	}
	for _, s := range p.steps {
		if op, ok := s.spec.(collective.Collective); ok {
			if want, _ := op.Of(); ranks%want != 0 {
				return fmt.Errorf("%s is for %d ranks, the machine is one of %d: see WithGroup", describe(s.node), want, ranks)
			}
		}
	}
	return nil
}

// bucket is a list of gradients that one step reduces.
type bucket struct {
	grads []*planValue
	after int // index of the last step that writes one of them
	owner int // with WithShardedStates: the rank that changes their weights
}

// addReductions averages gradients over the ranks of WithGroup, bucket by bucket, each behind the step that writes its
// last gradient. Gradients are reduced in place: one that other steps read, or that an op on the host may compute, is
// copied first.
func (p *plan) addReductions(o options) error {
	if p.group == nil {
		return nil
	}
	when := reduces
	if !o.hasOptimizer {
		if when = always; o.gradSums {
			return errors.New("WithGroup: WithGradSums needs WithOptimizer: RunAll does not know the last run of the sums")
		}
	}
	before := make([][]*step, len(p.steps)+1) // by index: the steps to add before a step
	grads, written, err := p.ownGradients(o, before)
	if err != nil {
		return err
	}
	var last []*step
	size := p.group.Size()
	for _, b := range p.bucketsOf(grads, written) {
		reduced := b.grads
		if p.policy.CompressGrads {
			if reduced, err = p.compress(b, when, before, &last, written); err != nil {
				return err
			}
		}
		var op spec.Spec = collective.AllReduce{Ranks: size, Mean: true}
		if p.sharded {
			op = collective.Reduce{Ranks: size, Root: b.owner, Mean: true}
			for _, v := range b.grads {
				p.owners[v] = b.owner
			}
		}
		before[b.after+1] = append(before[b.after+1], &step{node: b.grads[0].node, spec: op, in: reduced, out: reduced,
			phase: when})
	}
	var steps []*step
	for i, list := range before {
		if steps = append(steps, list...); i < len(p.steps) {
			steps = append(steps, p.steps[i])
		}
	}
	p.steps = append(steps, last...)
	return nil
}

// ownGradients returns the gradients to reduce, as values that may be reduced in place, and the last step that writes
// each.
func (p *plan) ownGradients(o options, before [][]*step) (grads []*planValue, written map[*planValue]int, err error) {
	written = map[*planValue]int{}
	for _, v := range p.values {
		written[v] = -1
	}
	read, host := map[*planValue]bool{}, map[*planValue]bool{}
	for i, s := range p.steps {
		for _, v := range s.out {
			written[v], host[v] = i, s.spec == nil
		}
		for _, v := range s.in {
			read[v] = read[v] || !slices.Contains(s.out, v)
		}
	}
	for _, v := range p.wantedGradients(o) {
		if v.kind != fromKernel || read[v] || host[v] || v.constant {
			own := p.newValue(v.node, v.name, fromKernel, v.arg.Operand)
			at := written[v] + 1
			before[at] = append(before[at], &step{node: v.node, spec: pointwise.Add{}, in: []*planValue{v},
				out: []*planValue{own}})
			written[own] = written[v]
			if v.keep {
				p.show(v, own)
			} else {
				p.valueByNode[v.node] = own
			}
			v = own
		}
		if dt := v.arg.Dtype; dt != tensor.Float32 && dt != tensor.Float64 && !spec.IsHalf(dt) {
			return nil, nil, fmt.Errorf("WithGroup: %s is %v: only floats are averaged", v.name, v.arg.Operand)
		}
		grads = append(grads, v)
	}
	collects := func(s *step) bool { _, ok := s.spec.(collective.Collective); return ok }
	if len(grads) == 0 && !slices.ContainsFunc(p.steps, collects) {
		return nil, nil, errors.New("WithGroup: the graph has neither gradients nor collective ops")
	}
	return grads, written, nil
}

// wantedGradients returns the gradients of WithOptimizer's weights, without an optimizer all derivatives of inputs.
func (p *plan) wantedGradients(o options) (grads []*planValue) {
	add := func(n *G.Node) {
		if v := p.valueByNode[n]; v != nil && !slices.Contains(grads, v) { // addUpdate refuses what is missing
			grads = append(grads, v)
		}
	}
	for i := range o.weights {
		add(o.gradientOf(i))
	}
	if o.hasOptimizer {
		return grads
	}
	for _, n := range p.order.nodes {
		if v := p.valueByNode[n]; v != nil && len(v.wrt) > 0 {
			add(n)
		}
	}
	return grads
}

// bucketsOf puts gradients into buckets of about Policy.BucketBytes, in the order in which they are written. The
// gradients that one step writes stay together, in the order of its results.
func (p *plan) bucketsOf(grads []*planValue, written map[*planValue]int) (list []*bucket) {
	place := func(v *planValue) int {
		if written[v] < 0 {
			return 0
		}
		return slices.Index(p.steps[written[v]].out, v)
	}
	slices.SortStableFunc(grads, func(a, b *planValue) int {
		return cmp.Or(cmp.Compare(written[a], written[b]), cmp.Compare(place(a), place(b)))
	})
	loads, bytes := make([]int, p.group.Size()), 0
	for i, v := range grads {
		b := (*bucket)(nil)
		if len(list) > 0 {
			b = list[len(list)-1]
		}
		if b == nil || bytes >= p.policy.bucketBytes() && written[v] != b.after || v.arg.Dtype != grads[i-1].arg.Dtype {
			b, bytes = &bucket{}, 0
			list = append(list, b)
		}
		b.grads, b.after = append(b.grads, v), written[v]
		bytes += v.arg.Operand.Bytes()
	}
	for _, b := range list { // the next one for the rank that has least
		b.owner = slices.Index(loads, slices.Min(loads))
		for _, v := range b.grads {
			loads[b.owner] += v.arg.Operand.Bytes()
		}
	}
	return list
}

// compress adds casts of a bucket to bfloat16, before its reduction, and back to float32, behind all other steps.
func (p *plan) compress(b *bucket, when phase, before [][]*step, last *[]*step, written map[*planValue]int) (
	halves []*planValue, err error) {
	if !p.device.Half {
		return nil, fmt.Errorf("WithGroup: gradients in bfloat16: %s computes in float32", p.device.Kind)
	}
	for _, v := range b.grads {
		if v.arg.Dtype != tensor.Float32 {
			return b.grads, nil
		}
	}
	for _, v := range b.grads {
		h := p.newValue(nil, v.name+", bfloat16", fromKernel, spec.Operand{Dtype: spec.BFloat16, Shape: v.arg.Shape})
		halves = append(halves, h)
		at := written[v] + 1
		cast := func(to tensor.Dtype, in, out *planValue) *step {
			return &step{node: v.node, spec: spec.Cast{To: to}, in: []*planValue{in}, out: []*planValue{out}, phase: when}
		}
		before[at] = append(before[at], cast(spec.BFloat16, v, h))
		*last = append(*last, cast(tensor.Float32, h, v))
	}
	return halves, nil
}
