package graph

import (
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// writtenBy reports whether a step that changes weights writes the copies of all weights.
func (h *halfCopies) writtenBy(weights []G.ValueGrad) bool {
	missing := func(s *step) bool { return !slices.Contains(weights, G.ValueGrad(s.node)) }
	return len(h.casts) > 0 && !slices.ContainsFunc(h.casts, missing)
}

// castsOnly reports whether the steps before index to are all casts of weights.
func (h *halfCopies) castsOnly(to int) bool { return to <= len(h.casts) }

// bytes returns the size of all copies.
func (h *halfCopies) bytes() (n int) {
	for _, v := range h.byInput {
		n += v.arg.Operand.Bytes()
	}
	return n
}

// Refresh makes the next run cast all weights to half precision again. A solver calls it after a step that is not part
// of RunAndStep.
func (m *Machine) Refresh() {
	if m != nil {
		m.halfUpToDate.Store(false)
	}
}

// HalfType returns the type in which the machine stores activations, if that is half precision, and the zero value
// otherwise.
func (m *Machine) HalfType() tensor.Dtype {
	if m == nil || m.plan == nil {
		return tensor.Dtype{}
	}
	return m.half
}

// HalfCopy returns the half-precision copy of the input n, which kernels read instead of n. For an input without a copy
// it returns an operand without a cell, of HalfType.
func (m *Machine) HalfCopy(n *G.Node) spec.Arg {
	if m != nil && m.plan != nil {
		if c := m.halfCopies.byInput[n]; c != nil {
			return c.arg
		}
	}
	return spec.Arg{Operand: spec.Operand{Dtype: m.HalfType()}}
}
