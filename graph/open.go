package graph

import (
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/fault"
)

// NewMachine plans g. Errors name the node. gorgonia.Grad may give several inputs one derivative, or a constant as
// derivative. NewMachine then adds copies to the graph and makes them the inputs' derivatives, because Gorgonia's
// solvers zero a gradient after use.
func NewMachine(g *G.ExprGraph, opts ...Option) (_ *Machine, err error) {
	m := &Machine{}
	if m.opts, err = newOptions(g, opts); err != nil {
		return nil, err
	}
	m.owned = !m.opts.hasBackend
	m.opts.setLogger()
	if err := m.build(g); err != nil {
		return nil, errors.Join(fault.In("graph", "machine", err), m.Close())
	}
	return m, nil
}

// build makes the plan and what the machine needs to run it.
func (m *Machine) build(g *G.ExprGraph) (err error) {
	if m.plan, err = newPlan(g, m.opts); err != nil {
		return m.failGroup(err)
	}
	if err := m.agree(); err != nil {
		return err
	}
	if err := m.allocate(); err != nil { // kernels get memory, constants are uploaded
		return err
	}
	m.beginsSums = true
	if m.update != nil {
		if err := m.opts.optimizer.Attach(&OptimizerState{m: m}); err != nil {
			return err
		}
	}
	m.hiddenGraph = g.Subgraph(slices.Clone(m.hidden)...)
	m.logPlan()
	return nil
}

// Close frees the machine's memory, and its backend if the machine made it. The values of its nodes are invalid
// afterwards.
func (m *Machine) Close() error {
	if m == nil {
		return errMachineClosed
	}
	if err := m.use.begin(); err != nil {
		return fmt.Errorf("graph: machine: %w", err)
	}
	defer m.use.end()
	if m.closed.Swap(true) {
		return nil
	}
	var errs []error
	if m.stream != nil {
		errs = append(errs, m.join(), m.stream.Synchronize())
		for i := range m.segments {
			errs = append(errs, m.segments[i].drop())
		}
		for _, r := range m.readers {
			errs = append(errs, r.free())
		}
		if m.second != nil {
			errs = append(errs, m.second.Close())
		}
		errs = append(errs, m.stream.Close(), m.closeMarks())
	}
	m.segments, m.readers = nil, nil
	for i := range m.state {
		if s := &m.state[i]; s.own != nil {
			errs = append(errs, s.own.Free())
			s.own = nil
		}
	}
	if m.memory != nil {
		errs = append(errs, m.memory.Free())
		m.memory = nil
	}
	if m.owned {
		m.owned = false
		errs = append(errs, m.opts.backend.Close())
	}
	return errors.Join(errs...)
}
