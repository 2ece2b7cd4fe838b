package optim

import (
	"errors"
	"fmt"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/value"
)

// ownMachine takes the steps of a solver whose gradients another VM computes. Its graph has nothing but inputs: the
// weights and their gradients.
type ownMachine struct {
	machine        *graph.Machine
	names          []string
	weights, grads G.Nodes
	stepped        bool // a step has succeeded
}

// Step implements gorgonia.Solver. Errors name the weight. After an error the weights are unchanged and the step does
// not count. Errors are: a weight without a value or a gradient; a weight that is not in the backend's memory, has
// another shape than before, or shares memory with another one; gradients whose norm is not finite; a solver of
// graph.WithOptimizer, whose machine takes the steps.
func (s *AdamW) Step(weights []G.ValueGrad) (err error) {
	defer fault.Name(&err, "optim", "adamw")
	switch {
	case s.closed:
		return errClosed
	case s.options.decays == nil:
		return errZero
	case s.state != nil && s.own == nil:
		return errors.New("a machine takes its steps: call that machine's Step")
	}
	for i, w := range weights {
		if err := checkWeight(w, i); err != nil {
			return err
		}
	}
	if s.own == nil {
		own, err := s.newOwnMachine(weights)
		if err != nil {
			return err
		}
		s.own = own
	}
	if err = s.own.bind(weights); err == nil {
		err = s.own.step()
	}
	if err != nil {
		if !s.own.stepped { // the next step may have other weights
			err = errors.Join(err, s.own.machine.Close())
			s.own, s.state = nil, nil
		}
		return err
	}
	s.own.stepped = true
	for _, w := range weights {
		zeroDual(w)
	}
	return nil
}

func checkWeight(w G.ValueGrad, i int) error {
	if value.IsNil(w) {
		return fmt.Errorf("weight %d is nil", i)
	}
	name := nameOf(w, i)
	if value.IsNil(w.Value()) {
		return fmt.Errorf("%s has no value", name)
	}
	if shape := w.Value().Shape(); shape.TotalSize() == 0 {
		return fmt.Errorf("%s has no elements: its shape is %v", name, shape)
	}
	grad, err := w.Grad()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if value.IsNil(grad) {
		return fmt.Errorf("%s has no gradient: the graph has not run, or its VM does not keep it", name)
	}
	return nil
}

// nameOf returns the name of a weight or, if it has none, a name made of its index.
func nameOf(w G.ValueGrad, i int) string {
	if n, ok := w.(G.Namer); ok && n.Name() != "" {
		return n.Name()
	}
	return fmt.Sprintf("weight %d", i)
}

func (s *AdamW) newOwnMachine(weights []G.ValueGrad) (*ownMachine, error) {
	m, g := &ownMachine{}, G.NewGraph()
	for i, w := range weights {
		v := w.Value()
		input := func(name string) *G.Node {
			if v.Shape().IsScalar() {
				return G.NewScalar(g, v.Dtype(), G.WithName(name))
			}
			return G.NewTensor(g, v.Dtype(), v.Shape().Dims(), G.WithShape(v.Shape().Clone()...), G.WithName(name))
		}
		m.names = append(m.names, nameOf(w, i))
		m.weights, m.grads = append(m.weights, input(m.names[i])), append(m.grads, input("gradient of "+m.names[i]))
	}
	opts := []graph.Option{graph.WithOptimizer(s, m.weights...), graph.WithGradients(m.grads...)}
	if s.options.hasBackend {
		opts = append(opts, graph.WithBackend(s.options.backend))
	}
	var err error
	m.machine, err = graph.NewMachine(g, opts...)
	return m, err
}

// bind binds the values of weights and their gradients, which must be those of the first step.
func (m *ownMachine) bind(weights []G.ValueGrad) error {
	if len(weights) != len(m.weights) {
		return fmt.Errorf("%d weights, the first step had %d", len(weights), len(m.weights))
	}
	for i, w := range weights {
		if name := nameOf(w, i); name != m.names[i] {
			return fmt.Errorf("weight %d is %s, in the first step it was %s", i, name, m.names[i])
		}
		grad, err := w.Grad()
		if err != nil {
			return fmt.Errorf("%s: %w", m.names[i], err)
		}
		if err := let(m.weights[i], w.Value()); err != nil {
			return fmt.Errorf("%s: %w", m.names[i], err)
		}
		if err := let(m.grads[i], grad); err != nil {
			return fmt.Errorf("gradient of %s: %w", m.names[i], err)
		}
	}
	return nil
}

// step takes a step. On a device it waits for all other streams before, and for its own afterwards: the gradients come
// from another machine, which reads the weights next.
func (m *ownMachine) step() error {
	b := m.machine.Backend()
	if b.Device().Host {
		return m.machine.Step()
	}
	if err := b.Synchronize(); err != nil {
		return err
	}
	if err := m.machine.Step(); err != nil {
		return err
	}
	return m.machine.Synchronize()
}

// let gives n the value v, unless it has it already.
func let(n *G.Node, v G.Value) error {
	if n.Value() == v {
		return nil
	}
	return G.UnsafeLet(n, v)
}

// zeroDual sets the gradient of w to zero if it is a sum of gorgonia.BindDualValues, not a value that a machine writes
// in each run.
func zeroDual(w G.ValueGrad) {
	n, ok := w.(*G.Node)
	if !ok {
		return
	}
	if grad, err := n.Grad(); err == nil && (n.Deriv() == nil || n.Deriv().Value() != grad) {
		G.ZeroValue(grad)
	}
}
