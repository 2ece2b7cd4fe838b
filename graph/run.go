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

// Train runs the graph and takes a step of s, whose option WithSolverMachine names this machine: the same as RunAll and
// s.Step(weights), but with WithCapture both are recorded and replayed as one, and the step refreshes the copies of the
// weights in half precision in its own pass, so that the next call need not make them. Where an op on the host computes a
// gradient, or the graph has a gorgonia.Read, the step comes after the run.
//
// Who changes weights on the device by other means, between two calls, calls RunAll or Refresh.
func (m *Machine) Train(s *AdamW, weights []G.ValueGrad) error {
	if s == nil || s.options.machine != m {
		return errors.New("graph: machine: train: the solver is not of this machine: see WithSolverMachine")
	}
	return m.runWith(s, weights)
}

// Refresh makes the next run read all weights anew.
func (m *Machine) Refresh() { m.fresh = false }

// runWith runs the graph and, with a solver, its step.
func (m *Machine) runWith(solver *AdamW, weights []G.ValueGrad) (err error) {
	if m.stream == nil {
		return errMachineClosed
	}
	defer func() {
		if err != nil {
			m.fresh = false
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
	for _, s := range m.inputs {
		if err := m.load(s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	fresh := m.fresh && solver != nil && moves == m.moves
	m.fresh = false
	together := false
	if solver != nil && m.warm {
		if err := m.bind(false); err != nil { // where the gradients are going to be
			return err
		}
		together = len(m.reads) == 0 && m.inPlace(weights) // a read that fails must not leave a step behind
	}
	if together {
		err = m.runAndStep(solver, weights, fresh)
	} else {
		err = m.runSegments(fresh, nil)
	}
	if err != nil {
		return err
	}
	m.at = nil
	if err := m.bind(true); err != nil {
		return err
	}
	if err := m.unbindOthers(); err != nil {
		return err
	}
	if err := m.bindDuals(); err != nil {
		return err
	}
	if err := m.answerReads(); err != nil {
		return err
	}
	if solver != nil && !together { // only now have the gradients values that the solver can find
		if err := solver.takeStep(weights); err != nil {
			return fmt.Errorf("adamw: %w", err)
		}
	}
	m.warm = true
	return nil
}

// inPlace reports whether a run writes the gradients where they are bound before it. Those of ops on the host, and what a
// TapeMachine has left in an input to be added to, are known only after it.
func (m *Machine) inPlace(weights []G.ValueGrad) bool {
	for _, w := range weights {
		n, ok := w.(*G.Node)
		if !ok || n == nil || n.Deriv() == nil {
			return false
		}
		s := m.of[n.Deriv()]
		if g, err := n.Grad(); s == nil || s.kind != kernelSlot || err != nil || g != s.bound {
			return false
		}
	}
	return true
}

// runAndStep runs all steps and the solver's one behind them.
func (m *Machine) runAndStep(s *AdamW, weights []G.ValueGrad, fresh bool) error {
	err := s.begin(weights)
	if err != nil {
		return fmt.Errorf("adamw: %w", err)
	}
	if err := m.runSegments(fresh, s.plan); err != nil {
		return err
	}
	if err := s.end(weights, nil); err != nil {
		return fmt.Errorf("adamw: %w", err)
	}
	return nil
}

// runSegments runs all steps, but for the prologue's where fresh, and then the kernel of solver, if it is not nil.
func (m *Machine) runSegments(fresh bool, solver *adamWPlan) error {
	for i := range m.segments {
		s := &m.segments[i]
		var err error
		switch {
		case fresh && s.to <= m.refreshed:
		case s.kernels && m.opts.capture && m.warm && !m.opts.looks():
			var follows *adamWPlan
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
		return solver.launch()
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
		for i := range m.steps {
			if l.Kernel != nil && m.steps[i].kernel == l.Kernel {
				m.at = &m.steps[i]
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
func (m *Machine) runOnHost(st *step) error {
	args, wait := m.args[:len(st.in)], false
	for i, s := range st.in {
		if s.remote && s.copied != m.run {
			if err := m.download(s); err != nil {
				return fmt.Errorf("input %d: %w", i, err)
			}
			wait = true
		}
		args[i] = s.host
	}
	if wait {
		if err := m.stream.Synchronize(); err != nil {
			return err
		}
	}
	result, err := m.hostMem.do(st, args)
	for i, s := range st.in { // some ops reshape what they read, such as YOLOv3
		if d, ok := args[i].(*tensor.Dense); ok && !d.Shape().Eq(s.arg.Shape) && len(s.arg.Shape) > 0 {
			err = errors.Join(err, d.Reshape(s.arg.Shape...))
		}
	}
	defer clear(args)
	if err != nil {
		return err
	}
	if result == nil {
		return errors.New("the op returned no value")
	}
	v := result
	out := st.out[0]
	want := out.arg.Operand
	if got := (ops.Operand{Dtype: v.Dtype(), Shape: v.Shape()}); got.Dtype != want.Dtype || got.Elements() != want.Elements() {
		return fmt.Errorf("the op returned %v, want %v", got, want)
	}
	// An alias of memory that is used again. What is kept must be its own, since solvers write to gradients and weights.
	if m.inMemory(v) || out.keep && slices.ContainsFunc(args, func(a G.Value) bool { return overlap(a, v) }) && !m.hostMem.isLast(st, args) {
		if v, err = G.CloneValue(v); err != nil {
			return err
		}
	}
	v = conform(v, want)
	m.hostMem.share(st, args, result, v)
	out.host = v
	if out.readByKernel {
		if len(out.checks) > 0 {
			if err := m.check(out, v); err != nil {
				return err
			}
		}
		if err := m.send(out, v); err != nil {
			return err
		}
		out.remote = false
	}
	for _, s := range st.dead {
		if s.host != v {
			m.hostMem.release(s.host)
		}
		s.host = nil
	}
	return nil
}

// overlap reports whether two values of the host share memory.
func overlap(a, b G.Value) bool {
	return a.Uintptr() < b.Uintptr()+b.MemSize() && b.Uintptr() < a.Uintptr()+a.MemSize()
}

// download copies what lies on the device alone to the host.
func (m *Machine) download(s *slot) error {
	if s.staging == nil {
		s.staging = ops.NewValue(s.arg.Operand)
	}
	m.copies.downloads++
	if err := m.stream.Download(s.staging, s.arg); err != nil {
		return err
	}
	s.host, s.copied = s.staging, m.run
	return nil
}

// bind gives the kept nodes their values, before a run or after it. A value that is still bound since an earlier run stays.
func (m *Machine) bind(after bool) error {
	wait := false
	for _, s := range m.kept {
		var v G.Value
		if s.remote && s.hasHostInput() {
			if !after {
				continue
			}
			if s.copied != m.run {
				if err := m.download(s); err != nil {
					return fmt.Errorf("%s: %w", s.name, err)
				}
				wait = true
			}
			if v = s.host; s.node.Value() == v {
				continue
			}
		} else if s.kind == kernelSlot {
			// A value that has been unbound may come back, with other memory, from the pool of package tensor.
			if s.bound != nil && s.node.Value() == s.bound && s.bound.Uintptr() == uintptr(s.arg.Pointer()) {
				continue
			}
			v = m.stream.View(s.arg)
		} else {
			v = s.host
		}
		if err := G.UnsafeLet(s.node, v); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		s.bound = v
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

// hasHostInput reports whether s is the derivative of an input whose value is on the host. Gorgonia's solvers change such a
// value there and read its derivative there, too.
func (s *slot) hasHostInput() bool {
	return slices.ContainsFunc(s.gradOf, func(n *G.Node) bool { return !isRemote(n.Value()) })
}

// bindDuals copies the derivatives of inputs to where Grad finds them in inputs that a TapeMachine with
// gorgonia.BindDualValues has run before.
func (m *Machine) bindDuals() error {
	for _, d := range m.derivs {
		grad, err := d.of.Grad()
		if v := d.by.Value(); err == nil && grad != nil && v != nil && grad != v && d.of.Deriv() == d.by {
			_, err = G.Copy(grad, v)
		}
		if err != nil {
			return fmt.Errorf("gradient of %s: %w", describe(d.of), err)
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
		if s := r.from; s.kind == kernelSlot || s.remote {
			if m.made[i] == nil || *r.into != m.made[i] {
				m.made[i] = ops.NewValue(s.arg.Operand)
			}
			m.copies.downloads++
			if err := m.stream.Download(m.made[i], s.arg); err != nil {
				return fmt.Errorf("read of %s: %w", s.name, err)
			}
		} else {
			var err error
			if m.made[i], err = G.CloneValue(s.host); err != nil {
				return fmt.Errorf("read of %s: %w", s.name, err)
			}
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
