package graph

import (
	"errors"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/value"
)

// RunAndStep runs the graph and takes a step of s, whose Machine must be m. It computes the same as RunAll and
// s.Step(weights). Under WithCapture it records and replays both as one. The next call does not cast the weights to
// half precision again, because the step has written these copies. If an op on the host computes a gradient, or the
// graph has a gorgonia.Read, the step comes after the run and is not recorded.
//
// After changing weights on the device by other means, call RunAll or Refresh before the next RunAndStep.
func (m *Machine) RunAndStep(s Solver, weights []G.ValueGrad) error {
	if value.IsNil(s) || s.Machine() != m {
		return errors.New("graph: machine: run and step: the solver is not of this machine")
	}
	return m.runWith(s, weights)
}
