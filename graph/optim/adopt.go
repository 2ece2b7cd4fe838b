package optim

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops"
)

// adamWSpan is the memory of a weight or of its gradient.
type adamWSpan struct {
	from, to uintptr // addresses
	slot     int
	weight   bool
}

// adopt points the cells to the weights and their gradients, which must be those of the first step.
func (p *adamWPlan) adopt(weights []G.ValueGrad) error {
	if len(weights) != len(p.slots) {
		return fmt.Errorf("%d weights, the first step had %d", len(weights), len(p.slots))
	}
	for i, w := range weights {
		s := &p.slots[i]
		if n, ok := w.(G.Namer); ok && n.Name() != "" && n.Name() != s.name {
			return fmt.Errorf("weight %d is %s, in the first step it was %s", i, n.Name(), s.name)
		}
		v := w.Value()
		if value.IsNil(v) {
			return fmt.Errorf("%s has no value", s.name)
		}
		if n, ok := w.(*G.Node); ok && p.machine != nil {
			if c := p.machine.HalfCopy(n); c.Buf != nil && c.Buf != s.half.Buf {
				return fmt.Errorf("%s is another node than in the first step", s.name)
			}
		}
		if err := p.adoptInPlace(s.weight, v); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		grad, err := w.Grad()
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if value.IsNil(grad) {
			return fmt.Errorf("%s has no gradient: the graph has not run, or its VM does not keep it", s.name)
		}
		ok, err := p.backend.Adopt(s.grad.Buf, grad, s.grad.Operand)
		if err == nil && !ok {
			err = p.upload(s, grad)
		}
		if err != nil {
			return fmt.Errorf("gradient of %s: %w", s.name, err)
		}
	}
	return p.checkApart()
}

// upload copies a gradient that lies on the host to memory of the solver on the device.
func (p *adamWPlan) upload(s *adamWSlot, grad G.Value) error {
	if s.own == nil {
		var err error
		if s.own, err = p.backend.Alloc(s.grad.Operand.Bytes()); err != nil {
			return err
		}
	}
	s.own.Place(s.grad.Buf, 0, s.grad.Operand.Bytes())
	return p.stream.Upload(s.grad, grad)
}

// checkApart returns an error if a weight shares memory with another one or with a gradient: the step would change it
// twice, or read what it has changed.
func (p *adamWPlan) checkApart() error {
	p.spans = p.spans[:0]
	for i, s := range p.slots {
		w, g, bytes := uintptr(s.weight.Pointer()), uintptr(s.grad.Pointer()), uintptr(s.weight.Operand.Bytes())
		p.spans = append(p.spans, adamWSpan{w, w + bytes, i, true}, adamWSpan{g, g + bytes, i, false})
	}
	slices.SortFunc(p.spans, func(a, b adamWSpan) int { return cmp.Compare(a.from, b.from) })
	var last, lastWeight adamWSpan // that reach furthest
	for _, s := range p.spans {
		with := lastWeight
		if s.weight {
			with = last
		}
		if s.from < with.to {
			return fmt.Errorf("%s and %s share memory", p.describe(with), p.describe(s))
		}
		if s.to > last.to {
			last = s
		}
		if s.weight && s.to > lastWeight.to {
			lastWeight = s
		}
	}
	return nil
}

func (p *adamWPlan) describe(s adamWSpan) string {
	if s.weight {
		return p.slots[s.slot].name
	}
	return "the gradient of " + p.slots[s.slot].name
}

// adoptInPlace points a cell to the memory of a value that the step changes, which therefore cannot be a copy.
func (p *adamWPlan) adoptInPlace(a ops.Arg, v G.Value) error {
	ok, err := p.backend.Adopt(a.Buf, v, a.Operand)
	switch {
	case err != nil:
		return err
	case !ok:
		return errors.New("not in the memory of the solver's backend: see graph.MoveInputs")
	case uintptr(a.Pointer()) != v.Uintptr():
		return errors.New("not contiguous and row-major, so it can not be changed in place")
	}
	return nil
}
