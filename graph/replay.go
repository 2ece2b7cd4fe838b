package graph

import (
	"errors"
	"fmt"
)

// recording returns one of the segment's recordings. There are four: for runs that begin sums and for runs that add
// to them, each with and without the update. With micro-batches these take turns.
func (m *Machine) recording(s *segment) *recording {
	i := 0
	if m.beginsSums && s.sums {
		i = 1
	}
	if m.stepping && (s.reduces || s.updates) {
		i += 2
	}
	return &s.recordings[i]
}

func (s *segment) drop() error {
	var errs []error
	for i := range s.recordings {
		errs = append(errs, s.recordings[i].drop())
	}
	return errors.Join(errs...)
}

func (r *recording) drop() error {
	if r.replay == nil {
		return nil
	}
	old := r.replay
	r.replay = nil
	return old.Close()
}

// addToSegments adds step i to the last segment, or begins one with it.
func (m *Machine) addToSegments(i int) {
	s := m.steps[i]
	next := segment{from: i, to: i + 1, kernels: s.kernel != nil, sums: s.phase == beginsSum || s.phase == continuesSum,
		reduces: s.phase == reduces, updates: s.phase == updates, compares: s.phase == compares}
	if n := len(m.segments); n > 0 && next.kernels && m.segments[n-1].kernels && i != m.prologue &&
		i != len(m.halfCopies.casts) && (!next.updates || m.segments[n-1].updates || !m.storesFirst) &&
		next.compares == m.segments[n-1].compares {
		last := &m.segments[n-1]
		last.to, last.sums, last.reduces, last.updates = i+1, last.sums || next.sums, last.reduces || next.reduces,
			last.updates || next.updates
		return
	}
	m.segments = append(m.segments, next)
}

func (m *Machine) runSegment(s *segment) error {
	for i := s.from; i < s.to; i++ {
		ran := !m.skips(m.steps[i])
		if ran {
			if err := m.runStep(i); err != nil {
				return err
			}
		}
		m.releaseDead(m.steps[i])
		if ran && m.afterStep != nil {
			m.afterStep(i)
		}
	}
	return m.join()
}

func (m *Machine) runStep(i int) (err error) {
	m.running = m.steps[i]
	if k := m.running.kernel; k == nil {
		if err = m.join(); err == nil {
			err = m.runOnHost(m.running)
		}
	} else if err = k.Prepare(m.stream, m.works[i]); err == nil {
		err = m.launch(i)
	}
	if err == nil && m.afterStep != nil { // it times the step
		err = m.join()
	}
	if err == nil && m.opts.watches() {
		if err = m.join(); err == nil {
			err = m.watchResult(m.running)
		}
	}
	if err == nil {
		m.logStep(m.running)
		m.count(i)
	}
	return err
}

// launch launches the kernel of step i, in its stream and after what it reads.
func (m *Machine) launch(i int) error {
	s := m.steps[i]
	if s.side {
		if err := m.second.After(m.stream); err != nil {
			return err
		}
		m.forked, m.collected = true, true
		return s.kernel.Launch(m.second, m.works[i])
	}
	if s.joins {
		if err := m.join(); err != nil {
			return err
		}
	}
	return s.kernel.Launch(m.stream, m.works[i])
}

// join makes the stream wait for the second one.
func (m *Machine) join() error {
	if !m.forked {
		return nil
	}
	m.forked = false
	return m.stream.After(m.second)
}

// replaySegment replays s. It first records it unless there is a recording for the current addresses.
func (m *Machine) replaySegment(s *segment) error {
	steps := m.steps[s.from:s.to]
	for i, step := range steps {
		if m.running = step; m.skips(step) {
			continue
		}
		if err := step.kernel.Prepare(m.stream, m.works[s.from+i]); err != nil {
			return err
		}
	}
	r := m.recording(s)
	if r.replay == nil || r.addressChanges != m.addressChanges {
		if err := m.record(s, r); err != nil {
			return err
		}
	}
	m.running = nil
	if err := r.replay.Launch(m.stream); err != nil {
		return err
	}
	for i, step := range steps {
		if !m.skips(step) {
			m.count(s.from + i)
			m.collected = m.collected || step.side
		}
		m.releaseDead(step)
	}
	return nil
}

func (m *Machine) record(s *segment, r *recording) (err error) {
	if err := r.drop(); err != nil {
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
		if replay, end := m.stream.EndCapture(); end == nil { // after an error or a panic of Launch
			err = errors.Join(err, replay.Close())
		}
	}()
	for i, step := range m.steps[s.from:s.to] {
		m.running = step
		if m.skips(step) {
			continue
		}
		if err := m.launch(s.from + i); err != nil {
			return err
		}
	}
	m.running = nil
	if err := m.join(); err != nil {
		return err
	}
	launched = true
	replay, err := m.stream.EndCapture()
	if err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	*r = recording{replay, m.addressChanges}
	return nil
}
