package graph

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Solver is a gorgonia.Solver that works in the stream of a Machine, so that RunAndStep can put its step behind a run, in
// one recording. A step is Begin, Launch and End; Step does all three. It changes each weight in place and writes its
// HalfCopy.
type Solver interface {
	G.Solver
	// Machine returns the machine in whose stream the steps run, nil for none.
	Machine() *Machine
	// Begin checks the weights and their gradients and prepares the next step. It is never captured, so it may upload.
	Begin(weights []G.ValueGrad) error
	// Launch enqueues the kernels of the step. What a capture holds of it is launched again in later steps, each after a
	// Begin of its own.
	Launch() error
	// End counts the step. It returns the step's error where that is known without waiting for the device.
	End(weights []G.ValueGrad) error
}

// RunAndStep runs the graph and takes a step of s, whose machine is this one: the same as RunAll and s.Step(weights), but
// with WithCapture both are recorded and replayed as one, and the next call does not cast the weights to half precision
// again, since the step has written these copies. Where an op on the host computes a gradient, or the graph has a
// gorgonia.Read, the step comes after the run.
//
// Who changes weights on the device by other means, between two calls, calls RunAll or Refresh.
func (m *Machine) RunAndStep(s Solver, weights []G.ValueGrad) error {
	if value.IsNil(s) || s.Machine() != m {
		return errors.New("graph: machine: run and step: the solver is not of this machine")
	}
	return m.runWith(s, weights)
}

// Refresh makes the next run read all weights anew. A solver calls it after a step that is not part of RunAndStep.
func (m *Machine) Refresh() { m.upToDate = false }

// Backend returns the backend that the machine runs on.
func (m *Machine) Backend() Backend { return m.opts.backend }

// Stream returns the queue of the machine's runs, nil once the machine is closed. What a solver enqueues there is in order
// with the runs.
func (m *Machine) Stream() Stream { return m.stream }

// HalfCopy returns the copy of the input n in half precision that kernels read in its place; for an input without one an
// operand without a cell. Its type is that of the machine's activations, the zero value where these are not in half
// precision.
func (m *Machine) HalfCopy(n *G.Node) ops.Arg {
	if m.plan == nil {
		return ops.Arg{}
	}
	if c := m.halfCopies[n]; c != nil {
		return c.arg
	}
	return ops.Arg{Operand: ops.Operand{Dtype: m.half}}
}

// inPlace reports whether a run writes the gradients where they are bound before it. Those of ops on the host, and what a
// TapeMachine has left in an input to be added to, are known only after it.
func (m *Machine) inPlace(weights []G.ValueGrad) bool {
	for _, w := range weights {
		n, ok := w.(*G.Node)
		if !ok || n == nil || n.Deriv() == nil {
			return false
		}
		v := m.of[n.Deriv()]
		if g, err := n.Grad(); v == nil || v.kind != fromKernel || err != nil || g != m.state[v.id].bound {
			return false
		}
	}
	return true
}

// writesCopies reports whether a step of weights writes the half-precision copies of all weights.
func (m *Machine) writesCopies(weights []G.ValueGrad) bool {
	for _, s := range m.steps[:m.refreshed] {
		if !slices.Contains(weights, G.ValueGrad(s.node)) {
			return false
		}
	}
	return m.refreshed > 0
}

// Bind binds the first implementation of the site that b offers and whose guard accepts, for kernels that are not of a
// graph, such as a solver's. Where there is none it is an error.
func Bind(b Backend, site Site, in, out []ops.Arg) (Kernel, error) {
	k, _, refused, err := choose(b, site, in, out)
	if err == nil && k == nil {
		err = fmt.Errorf("%s has no kernel for it: %s", b.Device().Kind, cmp.Or(joined("", refused), "none is offered"))
	}
	return k, err
}

// AllocArgs allocates one block of memory of b that holds all operands, each aligned, and points their cells to it.
func AllocArgs(b Backend, args []ops.Arg) (Memory, error) {
	align, end := b.Device().Alignment, 0
	for _, a := range args {
		end += alignUp(a.Operand.Bytes(), align)
	}
	memory, err := b.Alloc(end)
	if err != nil {
		return nil, fmt.Errorf("memory of %d bytes: %w", end, err)
	}
	end = 0
	for _, a := range args {
		memory.Place(a.Buf, end, a.Operand.Bytes())
		end += alignUp(a.Operand.Bytes(), align)
	}
	return memory, nil
}
