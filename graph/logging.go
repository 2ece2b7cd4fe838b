package graph

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"
)

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
			l.Warn("implementation refused", "node", s.Node.ID(), "op", s.Op, "implementation", r.Name, "why", r.Why,
				"instead", s.Implementation)
		}
	}
	l.Info("plan", "device", p.Device.Name, "steps", len(p.Steps), "onHost", host, "arena", p.Arena, "workspace",
		p.Workspace)
}

func (m *Machine) logStep(s *step) {
	if l := m.opts.logger; l != nil && l.Enabled(context.Background(), slog.LevelDebug) {
		l.Debug("step", "run", m.run, "node", s.node.ID(), "op", s.opName(), "implementation", s.implementation,
			"result", s.out[0].arg.Operand.String())
	}
}

// logTimes logs the times of the steps that have run, by op and implementation, the longest first.
func (m *Machine) logTimes(times []time.Duration, ran []bool) {
	type path struct{ op, implementation string }
	type total struct {
		calls int
		time  time.Duration
	}
	totals := map[path]total{}
	for i, s := range m.steps {
		if !ran[i] {
			continue
		}
		p := path{s.opName(), s.implementation}
		totals[p] = total{totals[p].calls + 1, totals[p].time + times[i]}
	}
	for _, p := range slices.SortedFunc(maps.Keys(totals), func(a, b path) int {
		return cmp.Or(cmp.Compare(totals[b].time, totals[a].time), cmp.Compare(a.op, b.op),
			cmp.Compare(a.implementation, b.implementation))
	}) {
		t := totals[p]
		m.opts.logger.Info("time", "run", m.run, "op", p.op, "implementation", p.implementation, "calls", t.calls,
			"took", t.time)
	}
}
