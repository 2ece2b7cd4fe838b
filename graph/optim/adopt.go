package optim

import (
	"errors"
	"fmt"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops"
)

// adopt points the cells to the weights and their gradients, which must be those of the first step.
func (p *adamWPlan) adopt(weights []G.ValueGrad) error {
	if len(weights) != len(p.slots) {
		return fmt.Errorf("%d weights, the first step had %d", len(weights), len(p.slots))
	}
	moved := !p.apart
	p.apart = false // an error may leave some of them at new addresses
	for i, w := range weights {
		s := &p.slots[i]
		if n, ok := w.(G.Namer); ok && n.Name() != "" && n.Name() != s.name {
			return fmt.Errorf("weight %d is %s, in the first step it was %s", i, n.Name(), s.name)
		}
		v := w.Value()
		if value.IsNil(v) {
			return fmt.Errorf("%s has no value", s.name)
		}
		if n, ok := w.(*G.Node); ok {
			if c := p.machine.HalfCopy(n); c.Buf != nil && c.Buf != s.half.Buf {
				return fmt.Errorf("%s is another node than in the first step", s.name)
			}
		}
		weightAt, gradAt := s.weight.Pointer(), s.grad.Pointer()
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
		moved = moved || s.weight.Pointer() != weightAt || s.grad.Pointer() != gradAt
	}
	if moved {
		if err := p.checkApart(); err != nil {
			return err
		}
	}
	p.apart = true
	return nil
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
	overlap := func(a, b *cpu.Buf) bool {
		from, other := uintptr(a.Pointer()), uintptr(b.Pointer())
		return from < other+uintptr(b.Bytes()) && other < from+uintptr(a.Bytes())
	}
	for i, s := range p.slots {
		for j, o := range p.slots {
			switch {
			case i < j && overlap(s.weight.Buf, o.weight.Buf):
				return fmt.Errorf("%s and %s share memory", s.name, o.name)
			case overlap(s.weight.Buf, o.grad.Buf):
				return fmt.Errorf("%s and the gradient of %s share memory", s.name, o.name)
			}
		}
	}
	return nil
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
