package kernels

// CrossEntropy is the mean cross entropy of logits [Rows,Vocab] and targets int32 [Rows], -1 for none, and its gradient:
// crossentropy.cu. loss, lse and dloss are float32 whatever the type.
type CrossEntropy struct {
	Type        Type // of logits and dlogits
	Rows, Vocab int64
}

type crossEntropyParams struct {
	logits, targets, lse, rowLoss Ptr
	rows, vocab                   int64
}

type crossEntropyMeanParams struct {
	rowLoss, targets, loss Ptr
	rows                   int64
}

type crossEntropyScaleParams struct {
	targets, dloss, scale Ptr
	rows                  int64
}

type crossEntropyGradParams struct {
	logits, targets, lse, scale, dlogits Ptr
	rows, vocab                          int64
}

// Forward appends loss [1] and lse [Rows].
func (op CrossEntropy) Forward(to []Launch, logits, targets, loss, lse, work Ptr) ([]Launch, error) {
	if err := op.check("cross entropy"); err != nil {
		return to, err
	}
	block := rowThreads(op.Vocab)
	p := crossEntropyParams{logits, targets, lse, work, op.Rows, op.Vocab}
	mean := crossEntropyMeanParams{work, targets, loss, op.Rows}
	return append(to,
		launch(names.crossEntropy[op.Type], rowBlocks(op.Rows, block), block, 0, &p),
		launch(names.crossEntropyMean, Dim{1, 1, 1}, Dim{1024, 1, 1}, 0, &mean)), nil
}

// Backward appends dlogits. It may be logits.
func (op CrossEntropy) Backward(to []Launch, logits, targets, lse, dloss, dlogits, work Ptr) ([]Launch, error) {
	if err := op.check("gradient of cross entropy"); err != nil {
		return to, err
	}
	block := rowThreads(op.Vocab)
	scale := crossEntropyScaleParams{targets, dloss, work, op.Rows}
	p := crossEntropyGradParams{logits, targets, lse, work, dlogits, op.Rows, op.Vocab}
	return append(to,
		launch(names.crossEntropyScale, Dim{1, 1, 1}, Dim{1024, 1, 1}, 0, &scale),
		launch(names.crossEntropyGrad[op.Type], rowBlocks(op.Rows, block), block, 0, &p)), nil
}

// WorkBytes returns the work memory of Forward, which is enough for Backward.
func (op CrossEntropy) WorkBytes() int64 { return align(op.Rows * 4) }

func (op CrossEntropy) check(name string) error {
	return check(name, op.Type, size{"rows", op.Rows}, size{"vocabulary", op.Vocab})
}
