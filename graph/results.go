package graph

import (
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// storeResults hands out the results of a run: the values of nodes, the dual values of inputs, and the targets of
// Reads.
func (m *Machine) storeResults() error {
	if err := m.setValues(); err != nil {
		return err
	}
	if err := m.clearStale(); err != nil {
		return err
	}
	if err := m.copyDuals(); err != nil {
		return err
	}
	return m.fillReadTargets()
}

// setValues gives nodes all kept values. It waits for the copies to the host that it makes.
func (m *Machine) setValues() error {
	wait := false
	for _, v := range m.kept {
		var err error
		if m.setsCopy(v) {
			wait = wait || m.state[v.id].copied != m.run
			err = m.setCopy(v)
		} else {
			err = m.setInPlace(v)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
	}
	if wait {
		return m.stream.Synchronize()
	}
	return nil
}

// setsCopy reports whether the node of v shows a copy on the host of a value on the device.
func (m *Machine) setsCopy(v *planValue) bool { return m.state[v.id].remote && v.hasHostInput() }

// setCopy gives the node of v a copy on the host. It copies unless an op on the host has read the value in this run.
func (m *Machine) setCopy(v *planValue) error {
	s := &m.state[v.id]
	if s.copied != m.run {
		if err := m.download(v); err != nil {
			return err
		}
	}
	if v.node.Value() == s.host {
		return nil
	}
	return m.let(v, s.host)
}

// setInPlace gives the node of v the value where it lies. It leaves what an earlier run has shown if that is still
// right.
func (m *Machine) setInPlace(v *planValue) error {
	s := &m.state[v.id]
	if v.kind != fromKernel {
		return m.let(v, s.host)
	}
	// Compare addresses, too: package tensor's pool may use an unbound value again, with other memory.
	if s.shown != nil && v.node.Value() == s.shown && s.shown.Uintptr() == uintptr(v.arg.Pointer()) {
		return nil
	}
	return m.let(v, m.stream.View(v.arg))
}

// let gives the node of v a value. That of a Tensordot over all axes is a vector of one element, as a TapeMachine's,
// although its node has no axes.
func (m *Machine) let(v *planValue, shown G.Value) error {
	if s, ok := shown.(G.Scalar); ok && gorgoniaType(v.node.Op()) == "tensordotOp" {
		d := tensor.New(tensor.FromScalar(s.Data()))
		if err := G.UnsafeLet(v.node, d); err != nil { // it refuses the vector
			return err
		}
		m.state[v.id].shown = d
		return d.Reshape(1)
	}
	if err := G.UnsafeLet(v.node, shown); err != nil {
		return err
	}
	m.state[v.id].shown = shown
	return nil
}

// clearStale removes the values that earlier machines have given to nodes which this machine computes and does not
// keep.
func (m *Machine) clearStale() error {
	found := false
	for _, n := range m.hidden {
		v := n.Value()
		if v == nil {
			continue
		}
		found = true
		if d, ok := v.(*tensor.Dense); ok { // UnbindAll clears the bound tensor for reuse: let it be a clone
			if err := G.UnsafeLet(n, d.ShallowClone()); err != nil {
				return fmt.Errorf("%s: %w", describe(n), err)
			}
		}
	}
	if found {
		m.hiddenGraph.UnbindAll()
	}
	return nil
}

// hasHostInput reports whether v is the derivative of an input whose value is on the host. Gorgonia's solvers change
// the value there, and read the derivative there.
func (v *planValue) hasHostInput() bool {
	return slices.ContainsFunc(v.wrt, func(n *G.Node) bool { return !isRemote(n.Value()) })
}

// copyDuals copies derivatives to the dual values of inputs. An input has a dual value, which its Grad returns, if a
// TapeMachine with gorgonia.BindDualValues has run before.
func (m *Machine) copyDuals() error {
	for _, d := range m.kept {
		m.state[d.id].dual = nil
		for _, n := range d.wrt {
			grad, err := n.Grad()
			if v := d.node.Value(); err == nil && grad != nil && v != nil && grad != v && n.Deriv() == d.node {
				_, err = G.Copy(grad, v)
				m.state[d.id].dual = grad
			}
			if err != nil {
				return fmt.Errorf("gradient of %s: %w", describe(n), err)
			}
		}
	}
	return nil
}

// fillReadTargets puts host values into the targets of gorgonia.Read. It uses a value of an earlier run again.
func (m *Machine) fillReadTargets() error {
	if len(m.reads) == 0 {
		return nil
	}
	for i, r := range m.reads {
		if err := m.fillReadTarget(i, r); err != nil {
			return fmt.Errorf("read of %s: %w", r.from.name, err)
		}
	}
	return m.stream.Synchronize()
}

var errNilTarget = errors.New("the target is nil, want a *gorgonia.Value")

// fillReadTarget fills the target of r, the read i.
func (m *Machine) fillReadTarget(i int, r read) (err error) {
	v, s := r.from, &m.state[r.from.id]
	if r.into == nil {
		return errNilTarget
	}
	if v.kind == fromKernel || s.remote {
		if m.readValues[i] == nil || *r.into != m.readValues[i] {
			m.readValues[i] = spec.NewValue(v.arg.Operand)
		}
		m.transfers.downloads.Add(1)
		err = m.stream.Download(m.readValues[i], v.arg)
	} else if t, ok := s.host.(tensor.Tensor); ok { // G.CloneValue panics for sparse ones
		m.readValues[i] = t.Clone().(tensor.Tensor)
	} else {
		m.readValues[i], err = G.CloneValue(s.host)
	}
	if err != nil {
		return err
	}
	*r.into = m.readValues[i]
	return nil
}
