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
func (m *Machine) Profile() ([]time.Duration, error) {
	if m.stream == nil {
		return nil, errMachineClosed
	}
	var events []Event // before the first step and behind each
	times, err := m.profileWith(&events)
	for _, e := range events {
		err = errors.Join(err, e.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("graph: machine: profile: %w", err)
	}
	return times, nil
}

func (m *Machine) profileWith(made *[]Event) ([]time.Duration, error) {
	for range len(m.steps) + 1 {
		e, err := m.stream.NewEvent()
		if err != nil {
			return nil, err
		}
		*made = append(*made, e)
	}
	events := *made
	after, capture, failed := m.after, m.opts.capture, error(nil)
	m.opts.capture = false
	m.after = func(i int) {
		failed = errors.Join(failed, events[i+1].Record())
		if after != nil {
			after(i)
		}
	}
	err := m.stream.Synchronize()
	if err == nil {
		err = events[0].Record()
	}
	if err == nil {
		err = m.RunAll()
	}
	m.after, m.opts.capture = after, capture
	if err = errors.Join(err, failed, m.stream.Synchronize()); err != nil {
		return nil, err
	}
	times := make([]time.Duration, len(m.steps))
	for i := range times {
		var err error
		if times[i], err = events[i+1].Since(events[i]); err != nil {
			return nil, err
		}
	}
	return times, nil
}
