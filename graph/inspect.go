package graph

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"slices"
	"time"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// WithNaNWatch makes a run end with an error if the result of an op holds a NaN, as gorgonia.WithNaNWatch does for a
// TapeMachine. The error names the first such op and the nearest input of floats before it, such as a weight. The watch is
// slow: results on a device are copied to the host, nothing is replayed and no steps are fused. Further outputs of an op,
// such as the LSE of an attention, are not checked.
func WithNaNWatch() Option { return func(o *options) { o.watchNaN = true } }

// WithInfWatch is WithNaNWatch for infinite results.
func WithInfWatch() Option { return func(o *options) { o.watchInf = true } }

// WithLogger makes the machine log to l: its plan at level Info, refused implementations at Warn, and the steps of each run
// at Debug, except those that are replayed. Policy.Audit and Policy.Timing log at Info; without WithLogger they log text to
// stderr. The handler is called in the goroutine of the run.
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.logger = l } }

var errWatch = errors.New("found by the watch")

// watchesResults reports whether the machine checks each result for NaN or Inf.
func (o *options) watchesResults() bool { return o.watchNaN || o.watchInf }

// watchResult returns an error if the main result of s holds a NaN or Inf that is watched for.
func (m *Machine) watchResult(s *step) (err error) {
	result := s.out[0]
	want := result.arg.Operand
	switch dt := want.Dtype; {
	case ops.IsHalf(dt): // pairs, as an int32: no host value has such a type. Alignment leaves room after an odd last element
		want = ops.Operand{Dtype: tensor.Int32, Shape: tensor.Shape{(want.Elements() + 1) / 2}}
	case dt != tensor.Float32 && dt != tensor.Float64:
		return nil
	}
	v := m.state[result.id].host
	if result.kind == fromKernel {
		v = ops.NewValue(want)
		if err := errors.Join(m.stream.Download(v, ops.Arg{Operand: want, Buf: result.arg.Buf}), m.stream.Synchronize()); err != nil {
			return err
		}
	}
	if err := ops.HoldValue(&m.cell, v, want); err != nil {
		return err
	}
	var at func(i int) float64
	switch dt := result.arg.Dtype; dt {
	case tensor.Float64:
		list := cpu.Slice[float64](&m.cell)
		at = func(i int) float64 { return list[i] }
	case tensor.Float32:
		list := cpu.Slice[float32](&m.cell)
		at = func(i int) float64 { return float64(list[i]) }
	default:
		list := cpu.Slice[int32](&m.cell)
		at = func(i int) float64 { return halfKind(dt, uint16(list[i/2]>>(16*(i%2)))) }
	}
	for i := range result.arg.Elements() {
		if x := at(i); m.opts.watchNaN && math.IsNaN(x) || m.opts.watchInf && math.IsInf(x, 0) {
			return fmt.Errorf("%w: element %d of the result%s is %v", errWatch, i, m.nearby(s), x)
		}
	}
	return nil
}

// halfKind returns NaN or an infinity if bits are one in half precision, else 0.
func halfKind(dt tensor.Dtype, bits uint16) float64 {
	exponent := uint16(0x7c00)
	if dt == ops.BFloat16 {
		exponent = 0x7f80
	}
	switch sign := 1 - 2*int(bits>>15); {
	case bits&exponent != exponent:
		return 0
	case bits&^exponent&0x7fff != 0:
		return math.NaN()
	default:
		return math.Inf(sign)
	}
}

// nearby describes where the result of s is in the graph: the input whose gradient it is, or else the nearest input of
// floats before it, such as a weight. Scalars do not count. It is "" if there is no such input.
func (m *Machine) nearby(s *step) string {
	if wrt := s.out[0].wrt; len(wrt) > 0 {
		return ", the gradient of " + wrt[0].Name() + ","
	}
	seen := map[*G.Node]bool{}
	for near := (G.Nodes{s.node}); len(near) > 0; {
		var next G.Nodes
		for _, n := range near {
			if dt := n.Dtype(); n.Op() == nil && n.Dims() > 0 && (dt == tensor.Float32 || dt == tensor.Float64) {
				return ", near " + n.Name() + ","
			}
			for _, in := range m.order.inputs[n] {
				if !seen[in] {
					seen[in] = true
					next = append(next, in)
				}
			}
		}
		near = next
	}
	return ""
}

// setLogger sets a logger to stderr if the policy needs one and there is none.
func (o *options) setLogger() {
	if o.logger == nil && (o.policy.Audit || o.policy.Timing) {
		o.logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
}

// logPlan logs the plan and the implementations that were refused.
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

// NewEvent returns an Event in the machine's stream, to measure time on the device. Close it before the machine.
func (m *Machine) NewEvent() (Event, error) {
	if m.stream == nil {
		return nil, errMachineClosed
	}
	return m.stream.NewEvent()
}

// Profile runs the graph once, step by step and without a replay, and returns the device time of each of Plan().Steps: from
// the end of the step before to its own end. If the device waits for the host to enqueue a step, the time includes the wait.
func (m *Machine) Profile() ([]time.Duration, error) {
	if m.stream == nil {
		return nil, errMachineClosed
	}
	times, err := m.timed(func() error { return m.runOnce(nil, nil) })
	if err != nil {
		return nil, fmt.Errorf("graph: machine: profile: %w", err)
	}
	return times, nil
}

// timed calls run, waits for the end of its work, and returns the device time of each step, 0 for a step that did not run.
func (m *Machine) timed(run func() error) (times []time.Duration, err error) {
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
			return nil, err
		}
		events = append(events, e)
	}
	if err := errors.Join(m.stream.Synchronize(), events[0].Record()); err != nil {
		return nil, err
	}
	var failed error
	ran := make([]bool, len(m.steps))
	m.opts.capture = false
	m.afterStep = func(i int) { ran[i], failed = true, errors.Join(failed, events[i+1].Record()) }
	err = run()
	if err = errors.Join(err, failed, m.stream.Synchronize()); err != nil {
		return nil, err
	}
	times, last := make([]time.Duration, len(m.steps)), events[0]
	for i, e := range events[1:] {
		if !ran[i] {
			continue
		}
		if times[i], err = e.Since(last); err != nil {
			return nil, err
		}
		last = e
	}
	return times, nil
}

// logTimes logs the times of a run, by op and implementation, the longest first.
func (m *Machine) logTimes(times []time.Duration) {
	type path struct{ op, implementation string }
	type total struct {
		calls int
		time  time.Duration
	}
	totals := map[path]total{}
	for i, s := range m.steps {
		p := path{s.opName(), s.implementation}
		totals[p] = total{totals[p].calls + 1, totals[p].time + times[i]}
	}
	for _, p := range slices.SortedFunc(maps.Keys(totals), func(a, b path) int {
		return cmp.Or(cmp.Compare(totals[b].time, totals[a].time), cmp.Compare(a.op, b.op), cmp.Compare(a.implementation, b.implementation))
	}) {
		t := totals[p]
		m.opts.logger.Info("time", "run", m.run, "op", p.op, "implementation", p.implementation, "calls", t.calls, "took", t.time)
	}
}

// count counts a run of step i. It logs the step if it is attention and the policy asks for an audit.
func (m *Machine) count(i int) {
	m.counts[i]++
	if !m.policy.Audit {
		return
	}
	s := m.steps[i]
	if branch, _ := m.policy.Attention(s.spec); branch != "" {
		m.opts.logger.Info("attention", "run", m.run, "node", s.node.ID(), "op", s.opName(), "q", s.in[0].arg.Operand.String(),
			"k", s.in[1].arg.Operand.String(), "implementation", s.implementation, "refused", joined("", s.refused))
	}
}
