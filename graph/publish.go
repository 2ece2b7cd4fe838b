package graph

import (
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/ops"
)

// publish hands out the results of a run: the values of nodes, the dual values of inputs, and the targets of Reads.
func (m *Machine) publish() error {
	if err := m.bindKept(true); err != nil {
		return err
	}
	if err := m.unbindStale(); err != nil {
		return err
	}
	if err := m.bindDuals(); err != nil {
		return err
	}
	return m.fillReadTargets()
}

// bindKept binds the kept values to their nodes, before or after a run. It leaves what an earlier run has bound if that is
// still right.
func (m *Machine) bindKept(after bool) error {
	wait := false
	for _, v := range m.kept {
		s := &m.state[v.id]
		shown := s.host
		if s.remote && v.hasHostInput() {
			if !after {
				continue
			}
			if s.copied != m.run {
				if err := m.download(v); err != nil {
					return fmt.Errorf("%s: %w", v.name, err)
				}
				wait = true
			}
			shown = s.host
			if v.node.Value() == shown {
				continue
			}
		} else if v.kind == fromKernel {
			// Compare addresses, too: package tensor's pool may use an unbound value again, with other memory.
			if s.bound != nil && v.node.Value() == s.bound && s.bound.Uintptr() == uintptr(v.arg.Pointer()) {
				continue
			}
			shown = m.stream.View(v.arg)
		}
		if err := G.UnsafeLet(v.node, shown); err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
		s.bound = shown
	}
	if wait {
		return m.stream.Synchronize()
	}
	return nil
}

// unbindStale removes the values that earlier machines have bound to nodes which this machine computes and does not keep.
func (m *Machine) unbindStale() error {
	bound := false
	for _, n := range m.unbound {
		v := n.Value()
		if v == nil {
			continue
		}
		bound = true
		if d, ok := v.(*tensor.Dense); ok { // UnbindAll clears the bound tensor for reuse: let it be a clone
			if err := G.UnsafeLet(n, d.ShallowClone()); err != nil {
				return fmt.Errorf("%s: %w", describe(n), err)
			}
		}
	}
	if bound {
		m.unboundGraph.UnbindAll()
	}
	return nil
}

// hasHostInput reports whether v is the derivative of an input whose value is on the host. Gorgonia's solvers change the
// value there, and read the derivative there.
func (v *operand) hasHostInput() bool {
	return slices.ContainsFunc(v.wrt, func(n *G.Node) bool { return !isRemote(n.Value()) })
}

// bindDuals copies derivatives to the dual values of inputs. An input has a dual value, which its Grad returns, if a
// TapeMachine with gorgonia.BindDualValues has run before.
func (m *Machine) bindDuals() error {
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

// fillReadTarget fills the target of r, the read i.
func (m *Machine) fillReadTarget(i int, r read) (err error) {
	v, s := r.from, &m.state[r.from.id]
	if r.into == nil {
		return errors.New("the target is nil, want a *gorgonia.Value")
	}
	if v.kind == fromKernel || s.remote {
		if m.readValues[i] == nil || *r.into != m.readValues[i] {
			m.readValues[i] = ops.NewValue(v.arg.Operand)
		}
		m.transfers.downloads++
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
