package graph

import (
	"errors"
	"fmt"
)

// segment is a sequence of steps that are all kernels, or one op on the host.
type segment struct {
	from, to int // steps
	kernels  bool

	replay Replay // of the segment as it was captured, nil for none
	moves  int64  // of the machine then
	solver Solver // whose step is captured behind it, nil for none
}

// drop closes what was captured.
func (s *segment) drop() error {
	if s.replay == nil {
		return nil
	}
	old := s.replay
	s.replay = nil
	return old.Close()
}

// addToSegments adds step i to the last segment, or begins one with it.
func (m *Machine) addToSegments(i int) {
	kernels := m.steps[i].kernel != nil
	if n := len(m.segments); n > 0 && kernels && m.segments[n-1].kernels && i != m.prologue && i != m.refreshed {
		m.segments[n-1].to = i + 1
		return
	}
	m.segments = append(m.segments, segment{from: i, to: i + 1, kernels: kernels})
}

// runSegment runs the steps of s.
func (m *Machine) runSegment(s *segment) error {
	for i := s.from; i < s.to; i++ {
		m.at = m.steps[i]
		var err error
		if k := m.at.kernel; k == nil {
			err = m.runOnHost(m.at)
		} else if err = k.Prepare(m.stream, &m.work); err == nil {
			err = k.Launch(m.stream, &m.work)
		}
		if err == nil && m.opts.looks() {
			err = m.look(m.at)
		}
		if err != nil {
			return err
		}
		m.logStep(m.at)
		m.count(i)
		if m.after != nil {
			m.after(i)
		}
	}
	return nil
}

// replaySegment records s, with the kernels of solver if it is not nil, where that has not been done for the present
// addresses, and replays it.
func (m *Machine) replaySegment(s *segment, solver Solver) error {
	steps := m.steps[s.from:s.to]
	for _, m.at = range steps {
		if err := m.at.kernel.Prepare(m.stream, &m.work); err != nil {
			return err
		}
	}
	if s.replay == nil || s.moves != m.moves || s.solver != solver {
		if err := m.record(s, solver); err != nil {
			return err
		}
	}
	m.at = nil
	if err := s.replay.Launch(m.stream); err != nil {
		return err
	}
	for i := range steps {
		m.count(s.from + i)
	}
	return nil
}

func (m *Machine) record(s *segment, solver Solver) (err error) {
	if err := s.drop(); err != nil {
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
	for _, m.at = range m.steps[s.from:s.to] {
		if err := m.at.kernel.Launch(m.stream, &m.work); err != nil {
			return err
		}
	}
	m.at = nil
	if solver != nil {
		if err := solver.Launch(); err != nil {
			return err
		}
	}
	launched = true
	r, err := m.stream.EndCapture()
	if err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	s.replay, s.moves, s.solver = r, m.moves, solver
	return nil
}
