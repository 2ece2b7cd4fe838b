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
func (m *Machine) load(in *operand) error {
	v, s, want := in.node.Value(), &m.state[in.id], in.arg.Operand
	if v == nil {
		return errors.New("no value is bound")
	}
	if s.adopted && s.host == v && !in.updated { // as in the run before, and the backend looks whether it is still there
		return m.send(in, v)
	}
	s.adopted = false
	if got := v.Shape(); v.Dtype() != want.Dtype || !got.Eq(want.Shape) && !(got.IsScalar() && want.Elements() == 1) {
		return fmt.Errorf("got %v, want %v", ops.Operand{Dtype: v.Dtype(), Shape: got}, want)
	}
	s.host, s.remote = v, false
	if err := m.check(in, v); err != nil {
		return err
	}
	if in.updated {
		if err := m.updatesInPlace(v); err != nil {
			return err
		}
	}
	// A result of an earlier run, whose memory this run writes, or a view with gaps, on which ops of Gorgonia are wrong.
	if m.inMemory(v) || in.hostReads && hasGaps(v) {
		if err := m.upload(in, v); err != nil {
			return err
		}
		if s.remote = !m.device.Host; !s.remote {
			s.host = m.stream.View(in.arg)
		}
		return nil
	}
	if !in.kernelReads && m.device.Host {
		return nil
	}
	return m.send(in, v)
}

// checkFailure says that an op refuses the numbers of an input.
type checkFailure struct {
	check
	err error
}

func (c *checkFailure) Error() string { return c.err.Error() }

// check lets the ops that read to look at the numbers of v, where these are on the host.
func (m *Machine) check(to *operand, v G.Value) error {
	if len(to.checks) == 0 || isRemote(v) {
		return nil
	}
	if err := ops.HoldValue(&m.cell, v, to.arg.Operand); err != nil {
		return err
	}
	for _, c := range to.checks {
		if err := c.spec.Check(c.in, &m.cell); err != nil {
			return &checkFailure{c, err}
		}
	}
	return nil
}

// send makes v, where it is on the device already, the numbers of to in place. Else it copies them there for kernels that read
// them.
func (m *Machine) send(to *operand, v G.Value) error {
	before := to.arg.Pointer()
	ok, err := m.backend.Adopt(to.arg.Buf, v, to.arg.Operand)
	if err != nil {
		return err
	}
	s := &m.state[to.id]
	s.remote = ok && !m.device.Host
	s.adopted = s.remote
	if !ok && to.kernelReads {
		return m.upload(to, v)
	}
	if to.arg.Pointer() != before {
		m.moves++
	}
	return nil
}

// upload copies v into the arena, or into memory of to alone.
func (m *Machine) upload(to *operand, v G.Value) error {
	before, s := to.arg.Pointer(), &m.state[to.id]
	if to.region == nil {
		if s.own == nil {
			var err error
			if s.own, err = m.backend.Alloc(to.arg.Operand.Bytes()); err != nil {
				return err
			}
		}
		s.own.Place(to.arg.Buf, 0, to.arg.Operand.Bytes())
	}
	if to.arg.Pointer() != before {
		m.moves++
	}
	m.copies.uploads++
	return m.stream.Upload(to.arg, v)
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
