package graph

import (
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/ops"
)

// RunAll runs the graph once. It may be called again without Reset. On an asynchronous device it may return before the work
// has ended; a later run or Synchronize then returns the error of that work. Once warm it allocates nothing for graphs of
// this module's ops.
func (m *Machine) RunAll() error { return m.runWith(nil, nil) }

// runWith runs the graph and, if solver is not nil, a step of solver. It times the ops if the policy says so.
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

// runOnce runs the graph and, if solver is not nil, a step of solver: as part of the run if that is possible, else after it.
func (m *Machine) runOnce(solver Solver, weights []G.ValueGrad) (err error) {
	defer func() {
		if err != nil {
			clear(m.hostMem.owned)
			err = m.runError(err)
		}
	}()
	defer asError(&err)
	m.running = nil
	m.run++
	skipCasts := m.halfCopies.beginRun(solver != nil)
	for _, t := range m.train {
		if err := t.SetTraining(!m.opts.eval); err != nil {
			return err
		}
	}
	moved, err := m.loadInputs()
	if err != nil {
		return err
	}
	inRun, err := m.beginStep(solver, weights)
	if err != nil {
		return err
	}
	if err := m.runSegments(skipCasts && !moved, inRun); err != nil {
		return err
	}
	m.beginsSums = false
	if inRun != nil {
		if err := inRun.End(weights); err != nil {
			return err
		}
	}
	m.running = nil
	if err := m.publish(); err != nil {
		return err
	}
	if solver != nil && inRun == nil { // the gradients have values only now
		if err := solver.Step(weights); err != nil {
			return err
		}
	}
	m.beginsSums = solver != nil
	m.halfCopies.endRun(solver != nil, weights)
	m.warm = true
	return nil
}

// loadInputs loads the values that are bound to the inputs. It reports whether an address that kernels read has changed.
func (m *Machine) loadInputs() (moved bool, err error) {
	before := m.addressChanges
	for _, v := range m.inputs {
		if err := m.load(v); err != nil {
			return false, fmt.Errorf("%s: %w", v.name, err)
		}
	}
	return m.addressChanges != before, nil
}

// beginStep begins the step of solver, if it can be part of the run, and returns solver then. It returns nil if solver is nil
// or its step has to come after the run.
func (m *Machine) beginStep(solver Solver, weights []G.ValueGrad) (inRun Solver, err error) {
	if solver == nil || !m.warm {
		return nil, nil
	}
	if err := m.bindKept(false); err != nil { // bind the gradients to the memory that this run writes
		return nil, err
	}
	if len(m.reads) > 0 || !m.inPlace(weights) { // a run whose Read fails must not have taken a step
		return nil, nil
	}
	if err := solver.Begin(weights); err != nil {
		return nil, err
	}
	return solver, nil
}

// runSegments runs all steps and then the kernels of solver, if it is not nil. If skipCasts, it leaves out the casts of
// weights.
func (m *Machine) runSegments(skipCasts bool, solver Solver) error {
	for i := range m.segments {
		s := &m.segments[i]
		var err error
		switch {
		case skipCasts && m.halfCopies.castsOnly(s.to):
		case s.kernels && m.opts.capture && m.warm && !m.device.Host && !m.opts.checksResults():
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
	m.running = nil
	if solver != nil {
		return solver.Launch()
	}
	return nil
}

// runError adds the op that failed to err: the op of a *LaunchError, or the op that was running. It names an op of package
// ops as that package's own errors do.
func (m *Machine) runError(err error) error {
	if c := (*checkFailure)(nil); errors.As(err, &c) {
		return fmt.Errorf("graph: machine: node %d, shape %v: ops: %s: %w", c.node.ID(), c.node.Shape(), c.spec.Name(), c.err)
	}
	if l := (*LaunchError)(nil); errors.As(err, &l) {
		m.running = nil
		for _, s := range m.steps {
			if l.Kernel != nil && s.kernel == l.Kernel {
				m.running = s
			}
		}
	}
	if m.running == nil {
		return fmt.Errorf("graph: machine: %w", err)
	}
	n := m.running.node
	if s := m.running.spec; s != nil && m.running.kernel != nil {
		return fmt.Errorf("graph: machine: node %d, shape %v: ops: %s: %w", n.ID(), n.Shape(), s.Name(), err)
	}
	return fmt.Errorf("graph: machine: %s: %w", describe(n), err)
}

// runOnHost runs an op by its own Do.
func (m *Machine) runOnHost(s *step) error {
	args := m.args[:len(s.in)]
	defer clear(args)
	if err := m.loadArgs(args, s); err != nil {
		return err
	}
	result, err := m.hostMem.do(s, args)
	for i, v := range s.in { // undo it: some ops, such as YOLOv3, reshape their operands
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
	// Copy a result in the arena, whose memory is used again, and a kept one that shares memory with an operand: solvers
	// write to gradients and weights.
	if m.inMemory(v) || to.keep && slices.ContainsFunc(args, func(a G.Value) bool { return overlap(a, v) }) && !m.hostMem.isLast(s, args) {
		if v, err = G.CloneValue(v); err != nil {
			return err
		}
	}
	v = conform(v, want)
	if d, ok := v.(*tensor.Dense); ok && to.keep {
		tensor.WithEngine(G.StandardEngine{})(d) // as the results of a TapeMachine have
	}
	m.hostMem.disownShared(s, args, result, v)
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
	m.releaseDead(s, v)
	return nil
}

// loadArgs sets args to the host values of the operands of s. It copies those on the device to the host, once in each run.
func (m *Machine) loadArgs(args []G.Value, s *step) error {
	wait := false
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
		return m.stream.Synchronize()
	}
	return nil
}

// releaseDead forgets the host values that nothing reads after s. Their memory is used again, unless result, the value of s, lies in it.
func (m *Machine) releaseDead(s *step, result G.Value) {
	for _, d := range s.dead {
		dead := &m.state[d.id]
		if dead.host != result {
			m.hostMem.release(dead.host)
		}
		dead.host = nil
	}
}

// overlap reports whether two values of the host share memory.
func overlap(a, b G.Value) bool {
	return a.Uintptr() < b.Uintptr()+b.MemSize() && b.Uintptr() < a.Uintptr()+a.MemSize()
}

// download enqueues a copy of a value of the device to its staging value on the host.
func (m *Machine) download(v *operand) error {
	s := &m.state[v.id]
	if s.staging == nil {
		s.staging = ops.NewValue(v.arg.Operand)
	}
	m.transfers.downloads++
	if err := m.stream.Download(s.staging, v.arg); err != nil {
		return err
	}
	s.host, s.copied = s.staging, m.run
	return nil
}

// conform returns v in the shape of its node. An op may return the same elements in another shape: Gorgonia's ops return one
// element as a scalar. If v cannot be reshaped, conform returns v itself.
func conform(v G.Value, want ops.Operand) G.Value {
	if slices.Equal(v.Shape(), want.Shape) { // Shape.Eq takes a row or a column for a vector
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
