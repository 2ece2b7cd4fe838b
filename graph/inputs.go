package graph

import (
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/ops"
)

// load reads the value of an input.
func (m *Machine) load(s *slot) error {
	v := s.node.Value()
	if v == nil {
		return errors.New("no value is bound")
	}
	want := s.arg.Operand
	if got := v.Shape(); v.Dtype() != want.Dtype || !got.Eq(want.Shape) && !(got.IsScalar() && want.Elements() == 1) {
		return fmt.Errorf("got %v, want %v", ops.Operand{Dtype: v.Dtype(), Shape: got}, want)
	}
	s.host, s.remote = v, false
	if len(s.checks) > 0 {
		if err := m.check(s, v); err != nil {
			return err
		}
	}
	// A result of an earlier run, whose memory this run writes, or a view with gaps, on which ops of Gorgonia are wrong.
	if m.inMemory(v) || s.readByHost && hasGaps(v) {
		if err := m.upload(s, v); err != nil {
			return err
		}
		if s.remote = !m.device.Host; !s.remote {
			s.host = m.stream.View(s.arg)
		}
		return nil
	}
	if s.readByKernel {
		return m.send(s, v)
	}
	if m.device.Host {
		return nil
	}
	var err error
	s.remote, err = m.backend.Adopt(s.arg.Buf, v, s.arg.Operand)
	return err
}

// checkFailure says that an op refuses the numbers of an input.
type checkFailure struct {
	check
	err error
}

func (c *checkFailure) Error() string { return c.err.Error() }

// check lets the ops that read s look at the numbers of v, where these are on the host.
func (m *Machine) check(s *slot, v G.Value) error {
	if isRemote(v) {
		return nil
	}
	if err := ops.HoldValue(&m.cell, v, s.arg.Operand); err != nil {
		return err
	}
	for _, c := range s.checks {
		if err := c.spec.Check(c.in, &m.cell); err != nil {
			return &checkFailure{c, err}
		}
	}
	return nil
}

// send makes v the value of s that kernels read: in place, or copied.
func (m *Machine) send(s *slot, v G.Value) error {
	before := s.arg.Pointer()
	ok, err := m.backend.Adopt(s.arg.Buf, v, s.arg.Operand)
	if err != nil {
		return err
	}
	if !ok {
		return m.upload(s, v)
	}
	s.remote = !m.device.Host
	if s.arg.Pointer() != before {
		m.moves++
	}
	return nil
}

// upload copies v into the arena, or into memory that s has for itself.
func (m *Machine) upload(s *slot, v G.Value) error {
	before := s.arg.Pointer()
	if s.region == nil {
		if s.own == nil {
			var err error
			if s.own, err = m.backend.Alloc(s.arg.Operand.Bytes()); err != nil {
				return err
			}
		}
		s.own.Place(s.arg.Buf, 0, s.arg.Operand.Bytes())
	}
	if s.arg.Pointer() != before {
		m.moves++
	}
	m.copies.uploads++
	return m.stream.Upload(s.arg, v)
}

// inMemory reports whether v lies in the machine's arena.
func (m *Machine) inMemory(v G.Value) bool {
	p, base := v.Uintptr(), uintptr(m.all.Pointer())
	return p >= base && p-base < uintptr(m.all.Bytes())
}

// hasGaps reports whether v is a tensor of numbers that are not row-major without gaps.
func hasGaps(v G.Value) bool {
	d, ok := v.(*tensor.Dense)
	return ok && !ops.IsRowMajor(d) && slices.Contains([]tensor.Dtype{tensor.Float32, tensor.Float64, tensor.Int32}, d.Dtype())
}
