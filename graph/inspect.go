package graph

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// WithNaNWatch makes a run end with an error that names the first op whose result holds a NaN, as gorgonia.WithNaNWatch does
// for a TapeMachine. The results of ops on a device are copied to the host for it, nothing is replayed and no steps are
// fused, so it is slow. Results in half precision are not looked at, nor are the further outputs of an op, such as the LSE
// of an attention.
func WithNaNWatch() Option { return func(o *options) { o.watchNaN = true } }

// WithInfWatch is WithNaNWatch for infinite results.
func WithInfWatch() Option { return func(o *options) { o.watchInf = true } }

// WithLogger makes the machine log to l: its plan at level Info, implementations that were refused at Warn, and at Debug
// the steps of each run, but for those that are replayed. The handler is called in the goroutine of the run.
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.logger = l } }

var errWatch = errors.New("found by the watch")

// looks reports whether m looks at each result.
func (o *options) looks() bool { return o.watchNaN || o.watchInf }

// look returns an error if the main result of s holds what is watched for.
func (m *Machine) look(s *step) error {
	result := s.out[0]
	if dt := result.arg.Dtype; dt != tensor.Float32 && dt != tensor.Float64 {
		return nil
	}
	v := m.state[result.id].host
	if result.kind == fromKernel {
		v = ops.NewValue(result.arg.Operand)
		if err := errors.Join(m.stream.Download(v, result.arg), m.stream.Synchronize()); err != nil {
			return err
		}
	}
	if err := ops.HoldValue(&m.cell, v, result.arg.Operand); err != nil {
		return err
	}
	if result.arg.Dtype == tensor.Float32 {
		return lookAt(&m.opts, cpu.Slice[float32](&m.cell))
	}
	return lookAt(&m.opts, cpu.Slice[float64](&m.cell))
}

func lookAt[T float32 | float64](o *options, x []T) error {
	for i, x := range x {
		if o.watchNaN && math.IsNaN(float64(x)) || o.watchInf && math.IsInf(float64(x), 0) {
			return fmt.Errorf("%w: element %d of the result is %v", errWatch, i, x)
		}
	}
	return nil
}

// logPlan logs what NewMachine has made.
func (m *Machine) logPlan() {
	l := m.opts.logger
	if l == nil {
		return
	}
	p, host := m.Plan(), 0
	for _, s := range p.Steps {
		if s.Implementation == hostName {
			host++
		}
		for _, r := range s.Refused {
			l.Warn("implementation refused", "node", s.Node.ID(), "op", s.Op, "implementation", r.Name, "why", r.Why, "instead", s.Implementation)
		}
	}
	l.Info("plan", "device", p.Device.Name, "steps", len(p.Steps), "onHost", host, "arena", p.Arena, "workspace", p.Workspace)
}

// logStep logs a step that has run.
func (m *Machine) logStep(s *step) {
	if l := m.opts.logger; l != nil && l.Enabled(context.Background(), slog.LevelDebug) {
		l.Debug("step", "run", m.run, "node", s.node.ID(), "op", s.opName(), "implementation", s.implementation, "result", s.out[0].arg.Operand.String())
	}
}

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
