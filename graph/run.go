package graph

import (
	"errors"
	"fmt"
	"time"

	"github.com/gorgonia-nsa/nsa/internal/fault"
)

// RunAll runs the graph once. It may be called again without Reset. On an asynchronous device it may return before the
// work has ended; a later run or Synchronize then returns the error of that work. Once warm it allocates nothing for
// graphs of this module's ops.
func (m *Machine) RunAll() error { return m.runWith(false) }

// runWith runs the graph, as a Step or without the update. It times the ops if the policy says so.
func (m *Machine) runWith(step bool) error {
	if err := m.begin(); err != nil {
		return err
	}
	defer m.use.end()
	m.stepping = step
	if !m.policy.Timing {
		return m.runOnce()
	}
	times, ran, err := m.timed(m.runOnce)
	if err == nil {
		m.logTimes(times, ran)
	}
	return err
}

func (m *Machine) runOnce() (err error) {
	begun := false // Optimizer.Begin has succeeded
	defer func() {
		clear(m.hostMem.owned) // what a run that failed, or an op that left its memory unused, has not released
		if err != nil {
			err = errors.Join(m.failGroup(m.runError(err)), m.restoreHeaders())
		}
		if begun {
			m.opts.optimizer.End(err)
		}
	}()
	defer recoverAsError(&err)
	m.running = nil
	m.run++
	m.comparing = m.stepping && m.group != nil && m.updated%compareEvery == 0
	// RunAll casts again: a solver of Gorgonia may have changed the weights. Step may trust the copies.
	skipCasts := m.halfUpToDate.Load() && (m.stepping || m.halfCopies.allConstant)
	m.halfUpToDate.Store(false) // until the run has succeeded
	for _, t := range m.train {
		if err := setTraining(t, !m.opts.eval); err != nil {
			return err
		}
	}
	if m.stepping {
		if err := m.beginUpdate(); err != nil {
			return err
		}
		begun = true
	}
	moved, err := m.loadInputs()
	if err != nil {
		return err
	}
	if m.stepping {
		if err := m.checkAddresses(); err != nil {
			return err
		}
	}
	if err := m.zeroSums(); err != nil {
		return err
	}
	// A weight at a new address may have other numbers than its copy.
	if err := m.runSegments(skipCasts && !moved); err != nil {
		return err
	}
	if err := m.watchRun(); err != nil {
		return err
	}
	m.beginsSums = false // if checkNorm or storeResults fails, the sums are undefined until ZeroGrads
	m.running = nil
	if m.stepping {
		if err := m.checkNorm(); err != nil {
			return err
		}
	}
	if m.comparing {
		if err := m.compareWeights(); err != nil {
			return err
		}
	}
	if !m.stepping || !m.storesFirst {
		if err := m.storeResults(); err != nil {
			return err
		}
	}
	if m.stepping {
		m.zeroDuals()
	}
	m.beginsSums = m.stepping // a step ends the sums
	m.halfUpToDate.Store(m.halfCopies.allConstant || m.stepping && m.update.writesAllCopies(&m.halfCopies))
	m.warm = true
	if m.stepping {
		m.updated++
	}
	return m.groupError()
}

// loadInputs loads the values that are bound to the inputs. It reports whether an address that kernels read has
// changed.
func (m *Machine) loadInputs() (moved bool, err error) {
	before := m.addressChanges
	for _, v := range m.inputs {
		if v.updateOnly && !m.stepping {
			continue
		}
		if err := m.load(v); err != nil {
			return false, fmt.Errorf("%s: %w", v.name, err)
		}
	}
	return m.addressChanges != before, nil
}

// runSegments runs all steps. If skipCasts, it skips the casts of weights.
func (m *Machine) runSegments(skipCasts bool) error {
	for i := range m.segments {
		s := &m.segments[i]
		var err error
		if m.stepping && m.storesFirst && s.updates && (i == 0 || !m.segments[i-1].updates) {
			m.running = nil
			if err := m.storeResults(); err != nil {
				return err
			}
		}
		switch {
		case s.compares && !m.comparing:
		case skipCasts && s.to <= len(m.halfCopies.casts):
		case s.kernels && m.opts.capture && m.warm && !m.device.Host && !m.opts.watches():
			err = m.replaySegment(s)
		default:
			err = m.runSegment(s)
		}
		if err != nil {
			return err
		}
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
	if err := m.groupError(); err != nil {
		return fmt.Errorf("graph: machine: %w", err)
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

// NewEvent returns an Event in the machine's stream, to measure time on the device. Close it before the machine.
func (m *Machine) NewEvent() (Event, error) {
	if err := m.begin(); err != nil {
		return nil, err
	}
	defer m.use.end()
	return m.stream.NewEvent()
}

// Profile runs the graph once, step by step and without a replay, and returns the device time of each of Plan().Steps:
// from the end of the step before to its own end, 0 if the run leaves the step out. If the device waits for the host to
// enqueue a step, the time includes the wait.
func (m *Machine) Profile() ([]time.Duration, error) { return m.profile(false) }

// ProfileStep is Profile of a Step: it changes the weights of WithOptimizer.
func (m *Machine) ProfileStep() ([]time.Duration, error) {
	if m != nil && m.plan != nil && m.update == nil {
		return nil, errNoOptimizer
	}
	return m.profile(true)
}

func (m *Machine) profile(step bool) ([]time.Duration, error) {
	if err := m.begin(); err != nil {
		return nil, err
	}
	defer m.use.end()
	m.stepping = step
	times, _, err := m.timed(m.runOnce)
	return times, err
}
