package kernels

// Softmax is the softmax over the last axis of x [Rows,Cols], and its gradient: softmax.cu.
type Softmax struct {
	Type       Type
	Rows, Cols int64
}

type softmaxParams struct {
	x, y       Ptr
	rows, cols int64
}

type softmaxGradParams struct {
	y, dy, dx  Ptr
	rows, cols int64
}

// Forward appends y = softmax(x).
func (op Softmax) Forward(to []Launch, x, y Ptr) ([]Launch, error) {
	if err := op.check("softmax"); err != nil {
		return to, err
	}
	block := rowThreads(op.Cols)
	p := softmaxParams{x, y, op.Rows, op.Cols}
	return append(to, launch(names.softmax[op.Type], rowBlocks(op.Rows, block), block, 0, &p)), nil
}

// Backward appends dx from the result y and dy.
func (op Softmax) Backward(to []Launch, y, dy, dx Ptr) ([]Launch, error) {
	if err := op.check("gradient of softmax"); err != nil {
		return to, err
	}
	block := rowThreads(op.Cols)
	p := softmaxGradParams{y, dy, dx, op.Rows, op.Cols}
	return append(to, launch(names.softmaxGrad[op.Type], rowBlocks(op.Rows, block), block, 0, &p)), nil
}

func (op Softmax) check(name string) error {
	return check(name, op.Type, size{"rows", op.Rows}, size{"cols", op.Cols})
}
