package graph

import (
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
