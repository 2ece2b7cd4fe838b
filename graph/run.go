package graph

import (
	"errors"
	"fmt"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// RunAll runs the graph once. It may be called again without Reset. On an asynchronous device it may return before the work
// has ended; a later run or Synchronize then returns the error of that work. Once warm it allocates nothing for graphs of
// this module's ops.
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

// runOnce runs the graph and, if solver is not nil, a step of solver: as part of the run if that is possible, else after it.
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

// count counts a run of step i. It logs the step if it is attention and the policy asks for an audit.
func (m *Machine) count(i int) {
	m.counts[i].Add(1)
	if !m.policy.Audit {
		return
	}
	s := m.steps[i]
	if branch, _ := m.policy.Attention(s.spec); branch != "" {
		m.opts.logger.Info("attention", "run", m.run, "node", s.node.ID(), "op", s.opName(), "q", s.in[0].arg.Operand.String(),
			"k", s.in[1].arg.Operand.String(), "implementation", s.implementation, "refused", joinRefusals(s.refused))
	}
}

// runError adds the op that failed to err: the op of a *LaunchError, or the op that was running. It names an op of package
// ops as that package's own errors do.
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
