package graph

import (
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/ops"
)

// RunAll runs the graph once; it may be called again without Reset. On a device that works asynchronously it may return
// before the work has ended: an error of that work is returned by a later run or by Synchronize. Once warm it allocates
// nothing for graphs of this module's ops.
func (m *Machine) RunAll() error { return m.runWith(nil, nil) }

// runWith runs the graph and, with a solver, its step. It times the ops if the policy wants so.
func (m *Machine) runWith(solver Solver, weights []G.ValueGrad) error {
	if m.stream == nil {
		return errMachineClosed
	}
	if !m.policy.Timing {
		return m.runOnce(solver, weights)
	}
	times, err := m.timed(func() error { return m.runOnce(solver, weights) })
	if err == nil {
		m.logTimes(times)
	}
	return err
}

func (m *Machine) runOnce(solver Solver, weights []G.ValueGrad) (err error) {
	defer func() {
		if err != nil {
			m.upToDate = false
			clear(m.hostMem.owned)
			err = m.runError(err)
		}
	}()
	defer asError(&err)
	m.at = nil
	m.run++
	for _, t := range m.train {
		if err := t.SetTraining(!m.opts.eval); err != nil {
			return err
		}
	}
	moves := m.moves
	for _, v := range m.inputs {
		if err := m.load(v); err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
	}
	upToDate := m.upToDate && (solver != nil || m.holds) && moves == m.moves
	m.upToDate = false
	var follows Solver // whose step is part of the run
	if solver != nil && m.warm {
		if err := m.show(false); err != nil { // where the gradients are going to be
			return err
		}
		if len(m.reads) == 0 && m.inPlace(weights) { // a read that fails must not leave a step behind
			if err := solver.Begin(weights); err != nil {
				return err
			}
			follows = solver
		}
	}
	if err := m.runSegments(upToDate, follows); err != nil {
		return err
	}
	m.begins = false
	if follows != nil {
		if err := follows.End(weights); err != nil {
			return err
		}
	}
	m.at = nil
	show := func(m *Machine) error { return m.show(true) }
	for _, f := range [...]func(*Machine) error{show, (*Machine).unbindOthers, (*Machine).bindDuals, (*Machine).answerReads} {
		if err := f(m); err != nil {
			return err
		}
	}
	if solver != nil && follows == nil { // only now have the gradients values that the solver can find
		if err := solver.Step(weights); err != nil {
			return err
		}
	}
	m.begins = solver != nil
	m.upToDate = m.holds || solver != nil && m.writesCopies(weights)
	m.warm = true
	return nil
}

// runSegments runs all steps, but for the casts of weights that are upToDate, and then the kernels of solver, if it is not nil.
func (m *Machine) runSegments(upToDate bool, solver Solver) error {
	for i := range m.segments {
		s := &m.segments[i]
		var err error
		switch {
		case upToDate && s.to <= m.refreshed:
		case s.kernels && m.opts.capture && m.warm && !m.device.Host && !m.opts.looks():
			var follows Solver
			if i == len(m.segments)-1 {
				follows, solver = solver, nil
			}
			err = m.replaySegment(s, follows)
		default:
			err = m.runSegment(s)
		}
		if err != nil {
			return err
		}
	}
	m.at = nil
	if solver != nil {
		return solver.Launch()
	}
	return nil
}

// runError names the op that failed: the one that a *LaunchError tells, or the one that was running. One of package ops is
// named as its own errors do.
func (m *Machine) runError(err error) error {
	if c := (*checkFailure)(nil); errors.As(err, &c) {
		return fmt.Errorf("graph: machine: node %d, shape %v: ops: %s: %w", c.node.ID(), c.node.Shape(), c.spec.Name(), c.err)
	}
	if l := (*LaunchError)(nil); errors.As(err, &l) {
		m.at = nil
		for _, s := range m.steps {
			if l.Kernel != nil && s.kernel == l.Kernel {
				m.at = s
			}
		}
	}
	if m.at == nil {
		return fmt.Errorf("graph: machine: %w", err)
	}
	n := m.at.node
	if s := m.at.spec; s != nil && m.at.kernel != nil {
		return fmt.Errorf("graph: machine: node %d, shape %v: ops: %s: %w", n.ID(), n.Shape(), s.Name(), err)
	}
	return fmt.Errorf("graph: machine: %s: %w", describe(n), err)
}

// runOnHost runs an op by its own Do.
func (m *Machine) runOnHost(s *step) error {
	args, wait := m.args[:len(s.in)], false
	for i, v := range s.in {
		if in := &m.state[v.id]; in.remote && in.copied != m.run {
			if err := m.download(v); err != nil {
				return fmt.Errorf("input %d: %w", i, err)
			}
			wait = true
		}
		args[i] = m.state[v.id].host
	}
	if wait {
		if err := m.stream.Synchronize(); err != nil {
			return err
		}
	}
	defer clear(args)
	result, err := m.hostMem.do(s, args)
	for i, v := range s.in { // some ops reshape what they read, such as YOLOv3
		if d, ok := args[i].(*tensor.Dense); ok && !d.Shape().Eq(v.arg.Shape) && len(v.arg.Shape) > 0 {
			err = errors.Join(err, d.Reshape(v.arg.Shape...))
		}
	}
	if err != nil {
		return err
	}
	if result == nil {
		return errors.New("the op returned no value")
	}
	v, to := result, s.out[0]
	want := to.arg.Operand
	if got := (ops.Operand{Dtype: v.Dtype(), Shape: v.Shape()}); got.Dtype != want.Dtype || got.Elements() != want.Elements() {
		return fmt.Errorf("the op returned %v, want %v", got, want)
	}
	// An alias of memory that is used again. What is kept must be its own, since solvers write to gradients and weights.
	if m.inMemory(v) || to.keep && slices.ContainsFunc(args, func(a G.Value) bool { return overlap(a, v) }) && !m.hostMem.isLast(s, args) {
		if v, err = G.CloneValue(v); err != nil {
			return err
		}
	}
	v = conform(v, want)
	m.hostMem.share(s, args, result, v)
	out := &m.state[to.id]
	out.host = v
	if to.kernelReads {
		if err := m.check(to, v); err != nil {
			return err
		}
		if err := m.send(to, v); err != nil {
			return err
		}
	}
	for _, d := range s.dead {
		dead := &m.state[d.id]
		if dead.host != v {
			m.hostMem.release(dead.host)
		}
		dead.host = nil
	}
	return nil
}

// overlap reports whether two values of the host share memory.
func overlap(a, b G.Value) bool {
	return a.Uintptr() < b.Uintptr()+b.MemSize() && b.Uintptr() < a.Uintptr()+a.MemSize()
}

// download copies what lies on the device alone to the host.
func (m *Machine) download(v *operand) error {
	s := &m.state[v.id]
	if s.staging == nil {
		s.staging = ops.NewValue(v.arg.Operand)
	}
	m.copies.downloads++
	if err := m.stream.Download(s.staging, v.arg); err != nil {
		return err
	}
	s.host, s.copied = s.staging, m.run
	return nil
}

// show gives the kept nodes their values, before a run or after it. A value that is still bound since an earlier run stays.
func (m *Machine) show(after bool) error {
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
			if shown = s.host; v.node.Value() == shown {
				continue
			}
		} else if v.kind == fromKernel {
			// A value that has been unbound may come back, with other memory, from the pool of package tensor.
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

// unbindOthers takes values of earlier machines from nodes that this one computes and does not keep.
func (m *Machine) unbindOthers() error {
	bound := false
	for _, n := range m.others {
		v := n.Value()
		if v == nil {
			continue
		}
		bound = true
		if d, ok := v.(*tensor.Dense); ok { // which UnbindAll would clear for another use
			if err := G.UnsafeLet(n, d.ShallowClone()); err != nil {
				return fmt.Errorf("%s: %w", describe(n), err)
			}
		}
	}
	if bound {
		m.othersOf.UnbindAll()
	}
	return nil
}

// hasHostInput reports whether v is the derivative of an input whose value is on the host. Gorgonia's solvers change such a
// value there and read its derivative there, too.
func (v *operand) hasHostInput() bool {
	return slices.ContainsFunc(v.wrt, func(n *G.Node) bool { return !isRemote(n.Value()) })
}

// bindDuals copies the derivatives of inputs to where Grad finds them in inputs that a TapeMachine with
// gorgonia.BindDualValues has run before.
func (m *Machine) bindDuals() error {
	for _, d := range m.kept {
		for _, n := range d.wrt {
			grad, err := n.Grad()
			if v := d.node.Value(); err == nil && grad != nil && v != nil && grad != v && n.Deriv() == d.node {
				_, err = G.Copy(grad, v)
			}
			if err != nil {
				return fmt.Errorf("gradient of %s: %w", describe(n), err)
			}
		}
	}
	return nil
}

// answerReads puts host values into the targets of gorgonia.Read. A value that it made before is used again.
func (m *Machine) answerReads() error {
	if len(m.reads) == 0 {
		return nil
	}
	for i, r := range m.reads {
		v, s := r.from, &m.state[r.from.id]
		var err error
		if v.kind == fromKernel || s.remote {
			if m.made[i] == nil || *r.into != m.made[i] {
				m.made[i] = ops.NewValue(v.arg.Operand)
			}
			m.copies.downloads++
			err = m.stream.Download(m.made[i], v.arg)
		} else {
			m.made[i], err = G.CloneValue(s.host)
		}
		if err != nil {
			return fmt.Errorf("read of %s: %w", v.name, err)
		}
		*r.into = m.made[i]
	}
	return m.stream.Synchronize()
}

// conform returns v in the shape that its node has, where an op has returned the same elements in another one: Gorgonia's
// ops return one element as a scalar. It returns v itself where that cannot be done.
func conform(v G.Value, want ops.Operand) G.Value {
	if slices.Equal(v.Shape(), want.Shape) { // Shape.Eq takes rows and columns for vectors
		return v
	}
	var d *tensor.Dense
	switch v := v.(type) {
	case *tensor.Dense:
		d = v.ShallowClone()
	case G.Scalar:
		d = tensor.New(tensor.FromScalar(v.Data()))
	default:
		return v
	}
	if err := d.Reshape(want.Shape...); err != nil {
		return v
	}
	return d
}
