package graph

import (
	"errors"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// load checks the value that is bound to an input, and gives it to the kernels and the ops that read it:
//   - A value of the device is adopted: kernels read it in place.
//   - A value in the machine's own memory is copied to other memory, because this run overwrites it. So is one that an op on
//     the host reads and that is not plainly row-major, because some ops of Gorgonia are wrong on it. If its type has no
//     views, only these ops read it in row-major order.
//   - Any other value of the host is used in place on a Host backend, see Backend.Adopt. On a device it is uploaded if a
//     kernel reads it.
func (m *Machine) load(in *planValue) error {
	v, s, want := in.node.Value(), &m.state[in.id], in.arg.Operand
	if v == nil {
		return errors.New("no value is bound")
	}
	// the same device value as in the last run: Adopt checks that it is still there
	if s.adopted && s.host == v && !in.updated {
		return m.send(in, v)
	}
	s.adopted = false
	if err := value.Check(v, want.Dtype, want.Shape); err != nil {
		return err
	}
	s.host, s.remote = conform(v, want), false
	if err := m.checkValues(in, v); err != nil {
		return err
	}
	if in.updated || in.trained {
		if err := m.checkUpdatedInPlace(v); err != nil {
			return err
		}
	}
	if in.hostReads && viewOf(want.Dtype) == nil {
		s.host = toRowMajor(s.host)
	}
	if m.inOwnMemory(v) || in.hostReads && viewOf(want.Dtype) != nil && !isPlainRowMajor(v) {
		if err := m.upload(in, v); err != nil {
			return err
		}
		s.remote = !m.device.Host
		if !s.remote {
			s.host = m.stream.View(in.arg)
		}
		return nil
	}
	if in.hostReads {
		s.host = s.ownHeader(s.host)
	}
	if !in.kernelReads && m.device.Host {
		return nil
	}
	return m.send(in, v)
}

// ownHeader returns v with a header of its own, because ops of Gorgonia transpose and reshape their operands for the
// time of a call: other machines may read the bound tensor at that time. It returns the header of the last run if that
// is still right.
func (s *state) ownHeader(v G.Value) G.Value {
	d, ok := v.(*tensor.Dense)
	if !ok {
		return v
	}
	if h := s.header; h == nil || h.Uintptr() != d.Uintptr() || h.MemSize() != d.MemSize() || h.Dtype() != d.Dtype() ||
		!slices.Equal(h.Shape(), d.Shape()) || !slices.Equal(h.Strides(), d.Strides()) || h.DataOrder() != d.DataOrder() ||
		h.IsMaterializable() != d.IsMaterializable() || h.IsMasked() != d.IsMasked() {
		s.header = d.ShallowClone()
	}
	return s.header
}

// restoreHeaders restores the headers that the machine keeps from run to run, after an op has failed: it may have left
// an operand transposed. Inputs get other headers in the next run.
func (m *Machine) restoreHeaders() (err error) {
	for _, v := range m.values {
		s := &m.state[v.id]
		for _, held := range []G.Value{s.host, s.staging} {
			if d, ok := held.(*tensor.Dense); ok && (v.kind == fromConstant || v.kind == fromKernel) {
				err = errors.Join(err, restore(d, v.arg.Shape))
			}
		}
	}
	return err
}

// valueCheckError is the error of an op that refuses the numbers of an input.
type valueCheckError struct {
	valueCheck
	err error
}

func (c *valueCheckError) Error() string { return c.err.Error() }

// checkValues runs the checks of the ops that read x on the numbers of v. It skips a v that is not on the host.
func (m *Machine) checkValues(x *planValue, v G.Value) error {
	if len(x.checks) == 0 || isRemote(v) {
		return nil
	}
	if err := spec.PointAtValue(&m.cell, v, x.arg.Operand); err != nil {
		return err
	}
	for _, c := range x.checks {
		if err := c.spec.Check(c.in, &m.cell); err != nil {
			return &valueCheckError{c, err}
		}
	}
	return nil
}

// send makes v available to the kernels that read x. It points x's cell to v if v is on the device already; otherwise
// it uploads v, if there are such kernels.
func (m *Machine) send(x *planValue, v G.Value) error {
	before := x.arg.Pointer()
	ok, err := m.backend.Adopt(x.arg.Buf, v, x.arg.Operand)
	if err != nil {
		return err
	}
	s := &m.state[x.id]
	s.remote = ok && !m.device.Host
	s.adopted = s.remote
	if !ok && x.kernelReads {
		return m.upload(x, v)
	}
	if x.arg.Pointer() != before {
		m.addressChanges++
	}
	return nil
}

// upload copies v to the place of x in the arena or, if x has none, to device memory of its own.
func (m *Machine) upload(x *planValue, v G.Value) error {
	before, s := x.arg.Pointer(), &m.state[x.id]
	if x.region == nil {
		if s.own == nil {
			var err error
			if s.own, err = m.backend.Alloc(x.arg.Operand.Bytes()); err != nil {
				return err
			}
		}
		s.own.Place(x.arg.Buf, 0, x.arg.Operand.Bytes())
	}
	if x.arg.Pointer() != before {
		m.addressChanges++
	}
	m.transfers.uploads.Add(1)
	return m.stream.Upload(x.arg, v)
}

// inOwnMemory reports whether v lies in the machine's own memory: arena or workspace.
func (m *Machine) inOwnMemory(v G.Value) bool {
	p, base := v.Uintptr(), uintptr(m.wholeMemory.Pointer())
	return p >= base && p-base < uintptr(m.wholeMemory.Bytes())
}

// download enqueues a copy of a value of the device to its staging value on the host.
func (m *Machine) download(v *planValue) error {
	s := &m.state[v.id]
	if s.staging == nil {
		s.staging = spec.NewValue(v.arg.Operand)
	}
	m.transfers.downloads.Add(1)
	if err := m.stream.Download(s.staging, v.arg); err != nil {
		return err
	}
	s.host, s.copied = s.staging, m.run
	return nil
}

// checkUpdatedInPlace returns an error unless a step that updates v writes to v itself and not to a copy.
func (m *Machine) checkUpdatedInPlace(v G.Value) error {
	switch {
	case m.device.Host && (m.inOwnMemory(v) || !isPlainRowMajor(v)):
		return errors.New("an op writes to it: want a row-major tensor in memory of its own")
	case !m.device.Host && !isRemote(v):
		return errors.New("an op writes to it, so its value must be on the device: see MoveInputs")
	}
	return nil
}
