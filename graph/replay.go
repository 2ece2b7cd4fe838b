package graph

import (
	"errors"
	"fmt"
)

// runSegment runs the steps of s.
func (m *Machine) runSegment(s *segment) error {
	logs := m.opts.logs()
	for i := s.from; i < s.to; i++ {
		m.at = &m.steps[i]
		var err error
		if m.at.kernel != nil {
			err = m.launch(m.at.kernel)
		} else {
			err = m.runOnHost(m.at)
		}
		if err == nil && m.opts.looks() {
			err = m.look(m.at)
		}
		if err != nil {
			return err
		}
		if logs {
			m.logStep(m.at)
		}
		m.counts[m.at.counter]++
		if m.after != nil {
			m.after(i)
		}
	}
	return nil
}

// launch enqueues a kernel, outside of captures.
func (m *Machine) launch(k Kernel) error {
	if err := k.Prepare(m.stream, &m.work); err != nil {
		return err
	}
	return k.Launch(m.stream, &m.work)
}

// replaySegment records s, with the kernel of solver if it is not nil, where that has not been done for the present addresses, and replays
// it.
func (m *Machine) replaySegment(s *segment, solver *adamWPlan) error {
	r := &s.alone
	if solver != nil {
		r = &s.followed
	}
	for i := s.from; i < s.to; i++ {
		m.at = &m.steps[i]
		if err := m.at.kernel.Prepare(m.stream, &m.work); err != nil {
			return err
		}
	}
	if r.replay == nil || r.moves != m.moves || r.solver != solver {
		if err := m.record(s, r, solver); err != nil {
			return err
		}
	}
	m.at = nil
	if err := r.replay.Launch(m.stream); err != nil {
		return err
	}
	for i := s.from; i < s.to; i++ {
		m.counts[m.steps[i].counter]++
	}
	return nil
}

func (m *Machine) record(s *segment, into *recording, solver *adamWPlan) (err error) {
	if err := into.close(); err != nil {
		return err
	}
	if err := m.stream.BeginCapture(); err != nil {
		return err
	}
	launched := false
	defer func() {
		if launched {
			return
		}
		if r, end := m.stream.EndCapture(); end == nil { // after an error or a panic of Launch
			err = errors.Join(err, r.Close())
		}
	}()
	for i := s.from; i < s.to; i++ {
		m.at = &m.steps[i]
		if err := m.at.kernel.Launch(m.stream, &m.work); err != nil {
			return err
		}
	}
	m.at = nil
	if solver != nil {
		if err := solver.launch(); err != nil {
			return err
		}
	}
	launched = true
	r, err := m.stream.EndCapture()
	if err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	*into = recording{r, m.moves, solver}
	return nil
}
