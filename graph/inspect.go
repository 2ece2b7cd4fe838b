package graph

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// WithNaNWatch makes a run end with an error that names the first op whose result holds a NaN, as gorgonia.WithNaNWatch does
// for a TapeMachine. The results of ops on a device are copied to the host for it, and nothing is replayed, so it is slow.
// Results in half precision are not looked at, nor are the further outputs of an op, such as the LSE of an attention.
func WithNaNWatch() Option { return func(o *options) { o.watchNaN = true } }

// WithInfWatch is WithNaNWatch for infinite results.
func WithInfWatch() Option { return func(o *options) { o.watchInf = true } }

// WithLogger makes the machine log to l: its plan at level Info, implementations that were refused at Warn, and at Debug
// the steps of each run, but for those that are replayed. The handler is called in the goroutine of the run.
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.logger = l } }

var errWatch = errors.New("found by the watch")

// looks reports whether m looks at each result.
func (o *options) looks() bool { return o.watchNaN || o.watchInf }

// look returns an error if the main result of st holds what is watched for.
func (m *Machine) look(st *step) error {
	s := st.out[0]
	if s.arg.Dtype != tensor.Float32 && s.arg.Dtype != tensor.Float64 {
		return nil
	}
	v := s.host
	if s.kind == kernelSlot {
		v = ops.NewValue(s.arg.Operand)
		if err := errors.Join(m.stream.Download(v, s.arg), m.stream.Synchronize()); err != nil {
			return err
		}
	}
	if err := ops.HoldValue(&m.cell, v, s.arg.Operand); err != nil {
		return err
	}
	if s.arg.Dtype == tensor.Float32 {
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
	host := 0
	for _, s := range m.report.Steps {
		if s.Implementation == hostName {
			host++
		}
		for _, r := range s.Refused {
			l.Warn("implementation refused", "node", s.Node.ID(), "op", s.Op, "implementation", r.Name, "why", r.Why, "instead", s.Implementation)
		}
	}
	l.Info("plan", "device", m.report.Device.Name, "steps", len(m.report.Steps), "onHost", host, "arena", m.report.Arena, "workspace", m.report.Workspace)
}

// logStep logs a step that has run.
func (m *Machine) logStep(st *step) {
	m.opts.logger.Debug("step", "run", m.run, "node", st.node.ID(), "op", st.opName(), "implementation", st.chosen.name, "result", st.out[0].arg.Operand.String())
}

// logs reports whether steps are logged.
func (o *options) logs() bool {
	return o.logger != nil && o.logger.Enabled(context.Background(), slog.LevelDebug)
}
