package graph

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/ops"
)

// WithNaNWatch makes a run end with an error that names the first op whose result holds a NaN, as gorgonia.WithNaNWatch does
// for a TapeMachine. The results of ops on a device are copied to the host for it, nothing is replayed and no steps are fused, so it is slow.
// Results in half precision are not looked at, nor are the further outputs of an op, such as the LSE of an attention.
func WithNaNWatch() Option { return func(o *options) { o.watchNaN = true } }

// WithInfWatch is WithNaNWatch for infinite results.
func WithInfWatch() Option { return func(o *options) { o.watchInf = true } }

// WithLogger makes the machine log to l: its plan at level Info, implementations that were refused at Warn, and at Debug
// the steps of each run, but for those that are replayed. The handler is called in the goroutine of the run.
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.logger = l } }

var errLooked = errors.New("found by the watch")

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
	check := func(i int, x float64) error {
		if m.opts.watchNaN && math.IsNaN(x) || m.opts.watchInf && math.IsInf(x, 0) {
			return fmt.Errorf("%w: element %d of the result is %v", errLooked, i, x)
		}
		return nil
	}
	switch v := v.(type) {
	case *G.F32:
		return check(0, float64(*v))
	case *G.F64:
		return check(0, float64(*v))
	case *tensor.Dense:
		if v.RequiresIterator() {
			v = v.Materialize().(*tensor.Dense)
		}
		var err error
		switch x := v.Data().(type) {
		case float32:
			err = check(0, float64(x))
		case float64:
			err = check(0, x)
		case []float32:
			for i := 0; i < len(x) && err == nil; i++ {
				err = check(i, float64(x[i]))
			}
		case []float64:
			for i := 0; i < len(x) && err == nil; i++ {
				err = check(i, x[i])
			}
		}
		return err
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
	m.opts.logger.Debug("step", "run", m.run, "node", s.node.ID(), "op", s.opName(), "implementation", s.implementation, "result", s.out[0].arg.Operand.String())
}

// logs reports whether steps are logged.
func (o *options) logs() bool {
	return o.logger != nil && o.logger.Enabled(context.Background(), slog.LevelDebug)
}
