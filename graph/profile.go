package graph

import (
	"errors"
	"fmt"
	"time"
)

// NewEvent returns a mark in the machine's queue, to measure time on the device. It is to be closed before the machine.
func (m *Machine) NewEvent() (Event, error) {
	if m.stream == nil {
		return nil, errMachineClosed
	}
	return m.stream.NewEvent()
}

// Profile runs the graph once, step by step and not as a recording, and returns the device's time of each of Plan().Steps:
// from the end of the step before to its own end, which includes what the host needs to enqueue it where the device waits
// for that.
func (m *Machine) Profile() (times []time.Duration, err error) {
	if m.stream == nil {
		return nil, errMachineClosed
	}
	events := make([]Event, 0, len(m.steps)+1) // before the first step and behind each
	defer func(after func(int), capture bool) {
		m.after, m.opts.capture = after, capture
		for _, e := range events {
			err = errors.Join(err, e.Close())
		}
		if err != nil {
			times, err = nil, fmt.Errorf("graph: machine: profile: %w", err)
		}
	}(m.after, m.opts.capture)
	for range len(m.steps) + 1 {
		e, err := m.stream.NewEvent()
		if err != nil {
			return nil, err
		}
		events = append(events, e)
	}
	if err := errors.Join(m.stream.Synchronize(), events[0].Record()); err != nil {
		return nil, err
	}
	var failed error
	m.opts.capture = false
	m.after = func(i int) { failed = errors.Join(failed, events[i+1].Record()) }
	err = m.RunAll()
	if err = errors.Join(err, failed, m.stream.Synchronize()); err != nil {
		return nil, err
	}
	for i, e := range events[1:] {
		t, err := e.Since(events[i])
		if err != nil {
			return nil, err
		}
		times = append(times, t)
	}
	return times, nil
}
