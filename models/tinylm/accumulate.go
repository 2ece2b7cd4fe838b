package tinylm

import (
	G "gorgonia.org/gorgonia"
)

// WithAccumulation makes one step of several micro-batches: Run adds the gradients of each but the last, RunAndStep those of the
// last one and takes the step. A micro-batch weighs as much as it has targets that are not ignored, so the step is that
// of one batch of all, up to roundings. An error drops what has been added so far.
//
// It is for float32 weights, a graph.Machine and an optim.AdamW. n.Grad of a learnable is the sum so far, each micro-batch
// times its share of targets that are not ignored; RunAndStep tells the solver the sum of the shares, by which it divides.
func WithAccumulation() ModelOption { return func(o *modelOptions) { o.sums = true } }

// sums are the micro-batches since the last step.
type sums struct {
	batches   int
	predicted int // targets of theirs that are not ignored
}

// Predicted returns the number of targets of the batch that are not ignored: those that Loss is the mean over.
func (m *Model) Predicted() (n int) {
	for _, t := range m.targets {
		if t != -1 {
			n++
		}
	}
	return n
}

// add adds the batch to the sums, if the model has any, and gives it the weight that it has there.
func (m *Model) add() {
	if m.sums == nil {
		return
	}
	n := m.Predicted()
	m.sums.batches++
	m.sums.predicted += n
	*m.scale = G.F32(m.lossScale * float64(n) / float64(len(m.targets)))
}

// gradScale returns the number that the gradients are to be divided by: the loss scale times the weights of the batches.
func (m *Model) gradScale() float64 {
	if m.sums == nil || m.sums.predicted == 0 { // of no targets all gradients are zero
		return m.lossScale
	}
	return m.lossScale * float64(m.sums.predicted) / float64(len(m.targets))
}

// endSums makes the next run begin the sums anew, if the model has any.
func (m *Model) endSums() error {
	if m.sums == nil {
		return nil
	}
	*m.sums = sums{}
	return m.machine.ZeroGrads()
}
