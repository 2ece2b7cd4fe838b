package graph

import (
	"errors"
	"fmt"
	"time"
)

// NewEvent returns an Event in the machine's stream, to measure time on the device. Close it before the machine.
func (m *Machine) NewEvent() (Event, error) {
	if err := m.begin(); err != nil {
		return nil, err
	}
	defer m.use.end()
	return m.stream.NewEvent()
}

// Profile runs the graph once, step by step and without a replay, and returns the device time of each of Plan().Steps: from
// the end of the step before to its own end, 0 if the run leaves the step out. If the device waits for the host to enqueue a
// step, the time includes the wait.
func (m *Machine) Profile() ([]time.Duration, error) {
	if err := m.begin(); err != nil {
		return nil, err
	}
	defer m.use.end()
	times, _, err := m.timed(func() error { return m.runOnce(nil, nil) })
	return times, err
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
