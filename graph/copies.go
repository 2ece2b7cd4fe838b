package graph

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/ops"
)

// shareCopies takes out the steps that copy a kernel's result for nobody but other steps, and lets the copy be the result's
// memory. No step changes a value in place, so that nothing can tell them apart.
func (p *program) shareCopies() {
	p.steps = slices.DeleteFunc(p.steps, func(st step) bool {
		if !st.copies() || st.kernel == nil {
			return false
		}
		from, to := st.in[0], st.out[0]
		if from.kind != kernelSlot || from.arg.Dtype != to.arg.Dtype || to.keep {
			return false
		}
		to.same = from
		return true
	})
}

// copies reports whether the step's op returns its only input.
func (st *step) copies() bool {
	switch st.spec.(type) {
	case ops.AddGradOp:
		return true
	case ops.AddOp:
		return len(st.in) == 1
	}
	return false
}

// memory returns the slot whose memory s has: itself, but for copies that shareCopies has taken out.
func (s *slot) memory() *slot {
	for s.same != nil {
		s = s.same
	}
	return s
}
