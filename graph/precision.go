package graph

import (
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/collective"
)

// precisionPass is the state of the pass setTypes.
type precisionPass struct {
	*plan
	casts       map[cast]*planValue
	weightCasts []*step // the prologue begins with these: casts of inputs with a derivative and of constant inputs
	inputCasts  []*step // and ends with these: casts of other inputs and of constants
	body        []*step // all other steps, in order
}

// cast is the key of a cast in precisionPass.casts.
type cast struct {
	from *planValue
	to   tensor.Dtype
}

// setTypes gives each value its type. A step has its operands in half precision if the backend asks for it and an
// implementation accepts them, else in the graph's types. A collective takes them as they are. Casts are steps. Casts
// of inputs and constants come first, in the prologue; any other cast comes before the first step that needs it. A
// value that a node shows is cast to float32 right after the step that computes it.
func (p *plan) setTypes() error {
	if !spec.IsHalf(p.half) {
		return nil
	}
	if p.policy.PreferFP16 && !p.device.OnlyBF16 && !p.hasInputDerivatives() {
		p.half = spec.Float16
	}
	t := &precisionPass{plan: p, casts: map[cast]*planValue{}}
	for _, s := range p.steps {
		if err := forNode(s.node, func() error { return t.addStep(s) }); err != nil {
			return err
		}
	}
	trained := slices.ContainsFunc(t.weightCasts, func(s *step) bool { return s.node.Deriv() != nil })
	p.halfCopies = halfCopies{byInput: map[*G.Node]*planValue{}, casts: t.weightCasts,
		allConstant: len(t.weightCasts) > 0 && !trained}
	for c, v := range t.casts {
		if c.from.kind == fromInput && c.to == p.half {
			p.halfCopies.byInput[c.from.node] = v
		}
	}
	p.prologue = len(t.weightCasts) + len(t.inputCasts)
	p.steps = slices.Concat(t.weightCasts, t.inputCasts, t.body)
	return nil
}

// storage returns the types that the operands of a step should have: those of the backend, or of a collective those
// that its inputs have, since a cast to float32 would double what it sends.
func (t *precisionPass) storage(s *step, call Call) (in, out []tensor.Dtype) {
	if _, ok := s.spec.(collective.Collective); !ok {
		return t.backend.Storage(call, t.half)
	}
	for _, x := range call.In {
		in = append(in, x.Dtype)
	}
	return in, in
}

// addStep adds a step of the graph, with casts before it and after it.
func (t *precisionPass) addStep(s *step) error {
	call := t.call(s)
	in, out := t.storage(s, call)
	if len(in) != len(s.in) || len(out) != len(s.out) {
		return fmt.Errorf("%s returned storage types for %d inputs and %d outputs, want %d and %d", t.device.Kind,
			len(in), len(out), len(s.in), len(s.out))
	}
	for i := range call.In {
		call.In[i].Dtype = in[i]
	}
	for i := range call.Out {
		call.Out[i].Dtype = out[i]
	}
	impl, refused, err := firstGuarded(t.backend, call)
	if err != nil {
		return err
	}
	if impl == nil {
		if slices.ContainsFunc(slices.Concat(in, out), spec.IsHalf) {
			s.refused = refused // dispatch adds the refusals of the graph's types
		}
		in, out = graphTypes(in), graphTypes(out)
	}
	for i, v := range s.in {
		if s.in[i], err = t.stored(v, in[i]); err != nil {
			return fmt.Errorf("input %d: %w", i, err)
		}
	}
	t.body = append(t.body, s)
	for i, v := range s.out {
		v.arg.Dtype = out[i]
		if v.keep && spec.IsHalf(out[i]) {
			c, err := t.stored(v, tensor.Float32)
			if err != nil {
				return err
			}
			t.show(v, c)
		}
	}
	return nil
}

// stored returns v in the type dt: v itself or a cast of v.
func (t *precisionPass) stored(v *planValue, dt tensor.Dtype) (*planValue, error) {
	if dt == v.arg.Dtype {
		return v, nil
	}
	if c := t.casts[cast{v, dt}]; c != nil {
		return c, nil
	}
	op := spec.Cast{To: dt}
	out, err := op.Infer([]spec.Operand{v.arg.Operand})
	if err != nil {
		return nil, err
	}
	c := t.newValue(nil, "cast of "+v.name, fromKernel, out[0])
	c.persists, c.constant = v.kind == fromInput || v.kind == fromConstant, v.constant
	s := &step{node: v.node, spec: op, in: []*planValue{v}, out: []*planValue{c}}
	t.casts[cast{v, dt}] = c
	switch {
	case v.kind == fromInput && (v.node.Deriv() != nil || v.constant):
		t.weightCasts = append(t.weightCasts, s)
	case c.persists:
		t.inputCasts = append(t.inputCasts, s)
	default:
		t.body = append(t.body, s)
	}
	return c, nil
}

// show makes the node of v show c instead of v, and its Reads read c.
func (p *plan) show(v, c *planValue) {
	c.node, c.name, c.keep, c.wrt = v.node, v.name, true, v.wrt
	v.keep, v.wrt = false, nil
	p.valueByNode[v.node] = c
	for i := range p.reads {
		if p.reads[i].from == v {
			p.reads[i].from = c
		}
	}
}

func (h *halfCopies) bytes() (n int) {
	for _, v := range h.byInput {
		n += v.arg.Operand.Bytes()
	}
	return n
}

// Refresh makes the next run cast all weights to half precision again. Call it after changing weights on the device by
// other means than Step.
func (m *Machine) Refresh() {
	if m != nil {
		m.halfUpToDate.Store(false)
	}
}
