package graph

import (
	"errors"
	"fmt"
	"time"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/fault"
)

// RunAll runs the graph once. It may be called again without Reset. On an asynchronous device it may return before the
// work has ended; a later run or Synchronize then returns the error of that work. Once warm it allocates nothing for
// graphs of this module's ops.
func (m *Machine) RunAll() error { return m.runWith(nil, nil) }

// runWith runs the graph and, if solver is not nil, a step of solver. It times the ops if the policy says so.
func (m *Machine) runWith(solver Solver, weights []G.ValueGrad) error {
	if err := m.begin(); err != nil {
		return err
	}
	defer m.use.end()
	if !m.policy.Timing {
		return m.runOnce(solver, weights)
	}
	times, ran, err := m.timed(func() error { return m.runOnce(solver, weights) })
	if err == nil {
		m.logTimes(times, ran)
	}
	return err
}

// runOnce runs the graph and, if solver is not nil, a step of solver: as part of the run if that is possible, else
// after it.
func (m *Machine) runOnce(solver Solver, weights []G.ValueGrad) (err error) {
	defer func() {
		clear(m.hostMem.owned) // what a run that failed, or an op that left its memory unused, has not released
		if err != nil {
			err = errors.Join(m.runError(err), m.restoreHeaders())
		}
	}()
	defer recoverAsError(&err)
	m.running = nil
	m.run++
	// RunAll casts again: a solver of Gorgonia may have changed the weights. RunAndStep may trust the copies.
	skipCasts := m.halfUpToDate.Load() && (solver != nil || m.halfCopies.allConstant)
	m.halfUpToDate.Store(false) // until the run has succeeded
	for _, t := range m.train {
		if err := setTraining(t, !m.opts.eval); err != nil {
			return err
		}
	}
	moved, err := m.loadInputs()
	if err != nil {
		return err
	}
	if err := m.zeroSums(); err != nil {
		return err
	}
	inRun, err := m.beginStep(solver, weights)
	if err != nil {
		return err
	}
	// A weight at a new address may have other numbers than its copy.
	if err := m.runSegments(skipCasts && !moved, inRun); err != nil {
		return err
	}
	m.beginsSums = false // if End or storeResults fails, the sums are undefined until ZeroGrads
	if inRun != nil {
		if err := inRun.End(weights); err != nil {
			return err
		}
	}
	m.running = nil
	if err := m.storeResults(); err != nil {
		return err
	}
	if solver != nil && inRun == nil { // the gradients have values only now
		if err := solver.Step(weights); err != nil {
			return err
		}
	}
	m.beginsSums = solver != nil // a step ends the sums
	m.halfUpToDate.Store(m.halfCopies.allConstant || solver != nil && m.halfCopies.writtenBy(weights))
	m.warm = true
	return nil
}

// loadInputs loads the values that are bound to the inputs. It reports whether an address that kernels read has
// changed.
func (m *Machine) loadInputs() (moved bool, err error) {
	before := m.addressChanges
	for _, v := range m.inputs {
		if err := m.load(v); err != nil {
			return false, fmt.Errorf("%s: %w", v.name, err)
		}
	}
	return m.addressChanges != before, nil
}

// beginStep begins the step of solver, if it can be part of the run, and returns solver then. It returns nil if solver
// is nil or its step has to come after the run.
func (m *Machine) beginStep(solver Solver, weights []G.ValueGrad) (inRun Solver, err error) {
	if solver == nil || !m.warm { // before the first run, results of ops on the host do not exist: the step comes after it
		return nil, nil
	}
	if err := m.setValuesBeforeRun(); err != nil { // the solver reads the gradients where this run writes them
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

// runSegments runs all steps and then the kernels of solver, if it is not nil. If skipCasts, it skips the casts of
// weights.
func (m *Machine) runSegments(skipCasts bool, solver Solver) error {
	for i := range m.segments {
		s := &m.segments[i]
		var err error
		switch {
		case skipCasts && m.halfCopies.castsOnly(s.to):
		case s.kernels && m.opts.capture && m.warm && !m.device.Host && !m.opts.watches():
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

// runError adds the op that failed to err: the op of a *LaunchError, or the op that was running. It names an op of
// package ops as that package's own errors do.
func (m *Machine) runError(err error) error {
	if c := (*valueCheckError)(nil); errors.As(err, &c) {
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
		return fault.In("graph", "machine", err)
	}
	n := m.running.node
	if s := m.running.spec; s != nil && m.running.kernel != nil {
		return fmt.Errorf("graph: machine: node %d, shape %v: ops: %s: %w", n.ID(), n.Shape(), s.Name(), err)
	}
	return fmt.Errorf("graph: machine: %s: %w", describe(n), err)
}

// Synchronize waits for the work of all runs so far and returns its first error.
func (m *Machine) Synchronize() error {
	if m != nil && m.Stream() == nil {
		return nil
	}
	if err := m.begin(); err != nil {
		return err
	}
	defer m.use.end()
	if err := m.stream.Synchronize(); err != nil {
		m.running = nil
		return m.runError(err)
	}
	return nil
}

// timed calls run, waits for the end of its work, and returns which steps have run and the device time of each of them.
func (m *Machine) timed(run func() error) (times []time.Duration, ran []bool, err error) {
	var runErr error
	defer func() {
		if err != nil && runErr == nil { // an error of run has the prefix already
			err = fmt.Errorf("graph: machine: timing: %w", err)
		}
	}()
	events := make([]Event, 0, len(m.steps)+1) // one before the first step and one after each
	defer func(after func(int), capture bool) {
		m.afterStep, m.opts.capture = after, capture
		for _, e := range events {
			err = errors.Join(err, e.Close())
		}
	}(m.afterStep, m.opts.capture)
	for range len(m.steps) + 1 {
		e, err := m.stream.NewEvent()
		if err != nil {
			return nil, nil, err
		}
		events = append(events, e)
	}
	if err := errors.Join(m.stream.Synchronize(), events[0].Record()); err != nil {
		return nil, nil, err
	}
	var failed error
	ran = make([]bool, len(m.steps))
	m.opts.capture = false
	m.afterStep = func(i int) { ran[i], failed = true, errors.Join(failed, events[i+1].Record()) }
	runErr = run()
	if err = errors.Join(runErr, failed, m.stream.Synchronize()); err != nil {
		return nil, nil, err
	}
	times, last := make([]time.Duration, len(m.steps)), events[0]
	for i, e := range events[1:] {
		if !ran[i] {
			continue
		}
		if times[i], err = e.Since(last); err != nil {
			return nil, nil, err
		}
		last = e
	}
	return times, ran, nil
}

// inPlace reports whether a run writes the gradients to the values that the nodes show before it. It does not for a
// gradient that an op on the host computes, or that a TapeMachine has left in an input to be added to: these are known
// only after the run.
func (m *Machine) inPlace(weights []G.ValueGrad) bool {
	for _, w := range weights {
		n, ok := w.(*G.Node)
		if !ok || n == nil || n.Deriv() == nil {
			return false
		}
		v := m.valueByNode[n.Deriv()]
		if g, err := n.Grad(); v == nil || v.kind != fromKernel || err != nil || g != m.state[v.id].shown {
			return false
		}
	}
	return true
}
