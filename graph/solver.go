package graph

import (
	"errors"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/value"
)

// Solver is a gorgonia.Solver that works in the stream of a Machine, so that RunAndStep can put its step after a run, in one
// recording. A step is Begin, Launch and End; Step does all three. A step changes each weight in place and writes its
// HalfCopy.
type Solver interface {
	G.Solver
	// Machine returns the machine in whose stream the steps run, nil for none.
	Machine() *Machine
	// Begin checks the weights and their gradients and prepares the next step. It is never captured, so it may upload.
	Begin(weights []G.ValueGrad) error
	// Launch enqueues the kernels of the step. A capture of Launch is replayed in later steps, each after a Begin of its own.
	Launch() error
	// End counts the step. It returns the step's error if this is known without waiting for the device.
	End(weights []G.ValueGrad) error
}

// RunAndStep runs the graph and takes a step of s, whose Machine must be m. It computes the same as RunAll and
// s.Step(weights). Under WithCapture it records and replays both as one. The next call does not cast the weights to half
// precision again, because the step has written these copies. If an op on the host computes a gradient, or the graph has a
// gorgonia.Read, the step comes after the run and is not recorded.
//
// After changing weights on the device by other means, call RunAll or Refresh before the next RunAndStep.
func (m *Machine) RunAndStep(s Solver, weights []G.ValueGrad) error {
	if value.IsNil(s) || s.Machine() != m {
		return errors.New("graph: machine: run and step: the solver is not of this machine")
	}
	return m.runWith(s, weights)
}

// inPlace reports whether a run writes the gradients to the values that the nodes show before it. It does not for a gradient
// that an op on the host computes, or that a TapeMachine has left in an input to be added to: these are known only after the
// run.
func (m *Machine) inPlace(weights []G.ValueGrad) bool {
	for _, w := range weights {
		n, ok := w.(*G.Node)
		if !ok || n == nil || n.Deriv() == nil {
			return false
		}
		v := m.valueByNode[n.Deriv()]
		if g, err := n.Grad(); v == nil || v.kind != fromKernel || err != nil || g != m.state[v.id].shown {
			return false
		}
	}
	return true
}
