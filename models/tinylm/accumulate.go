package tinylm

import (
	"cmp"
	"fmt"

	G "gorgonia.org/gorgonia"
)

// WithAccumulation makes one step of several micro-batches. Run adds the gradients of a micro-batch; Step adds
// those of the last one and takes the step. The weight of a micro-batch is its number of targets that are not ignored,
// so the step equals that of one large batch, up to rounding. An error drops the sums so far.
//
// It needs float32 weights, a graph.Machine and an optim.AdamW. The Grad of a learnable is the sum so far of each
// micro-batch's gradient times the share of its targets that are not ignored. Step passes the sum of these shares
// to the solver, which divides by it.
func WithAccumulation() ModelOption { return func(o *modelOptions) { o.accumulate = true } }

// accumulated counts the micro-batches since the last step.
type accumulated struct {
	batches int
	targets int // those that are not ignored
	all     int // of SetStepTargets; 0: not told
}

// SetStepTargets tells the model how many targets of the next step are not ignored, over all micro-batches and all ranks
// of WithGroup. Without it the ranks count as having equally many.
func (m *Model) SetStepTargets(n int) error {
	if m.accumulated == nil || n < 1 {
		return fmt.Errorf("tinylm: %d targets: want at least 1, and a model built WithGradients and WithGroup or WithAccumulation", n)
	}
	m.accumulated.all = n
	return nil
}

// NumTargets returns the number of targets of the batch that are not ignored. Loss is the mean over these.
func (m *Model) NumTargets() (n int) {
	for _, t := range m.targets {
		if t != -1 {
			n++
		}
	}
	return n
}

// countBatch counts the batch in the sums, if the model has any, and sets the scale of its gradients to its weight.
func (m *Model) countBatch() {
	if m.accumulated == nil {
		return
	}
	n := m.NumTargets()
	m.accumulated.batches++
	m.accumulated.targets += n
	*m.scale = G.F32(m.lossScale * float64(n) / float64(len(m.targets)))
}

// gradScale returns the number that the solver divides the gradients by: the loss scale times the sum of the batches'
// weights, in the mean over the ranks.
func (m *Model) gradScale() float64 {
	if m.accumulated == nil {
		return m.lossScale
	}
	all := cmp.Or(m.accumulated.all, m.ranks*m.accumulated.targets)
	if all == 0 { // all gradients are zero
		return m.lossScale
	}
	return m.lossScale * float64(all) / float64(m.ranks*len(m.targets))
}

// dropAccumulated clears the sums, if the model has any, so that the next run starts new ones.
func (m *Model) dropAccumulated() error {
	if m.accumulated == nil {
		return nil
	}
	*m.accumulated = accumulated{}
	return m.machine.ZeroGrads()
}
