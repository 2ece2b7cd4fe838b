package kernels

// RMSNorm is x r weight over the last axis of x [Rows,Dim], r = 1/sqrt(mean(x²) + Eps), and its gradient: rmsnorm.cu.
type RMSNorm struct {
	Type      Type // of x, weight, y, dy and dx
	Out       Type // of dweight
	Rows, Dim int64
	Eps       float64
}

type rmsNormParams struct {
	x, weight, y Ptr
	rows, dim    int64
	eps          float32
	_            int32
}

type rmsNormGradParams struct {
	x, weight, dy, dx, partial Ptr
	rows, dim, run             int64
	eps                        float32
	_                          int32
}

// maxNormDim is the longest row whose sum of dweight fits the 48 KB of shared memory that every device has.
const maxNormDim = 12288 - 256

// Forward appends y = x r weight.
func (op RMSNorm) Forward(to []Launch, x, weight, y Ptr) ([]Launch, error) {
	if err := op.check("rms norm"); err != nil {
		return to, err
	}
	block := rowThreads(op.Dim)
	p := rmsNormParams{x: x, weight: weight, y: y, rows: op.Rows, dim: op.Dim, eps: float32(op.Eps)}
	return append(to, launch(names.rmsnorm[op.Type], rowBlocks(op.Rows, block), block, 0, &p)), nil
}

// Backward appends dx and dweight.
func (op RMSNorm) Backward(to []Launch, x, weight, dy, dx, dweight, work Ptr) ([]Launch, error) {
	const name = "gradient of rms norm"
	if err := op.check(name); err != nil {
		return to, err
	}
	if op.Dim > maxNormDim {
		return to, unsupported(name, "dim is %d, want at most %d", op.Dim, maxNormDim)
	}
	run := runOf(op.Rows)
	p := rmsNormGradParams{
		x: x, weight: weight, dy: dy, dx: dx, partial: work, rows: op.Rows, dim: op.Dim, run: run, eps: float32(op.Eps),
	}
	block := rowThreads(op.Dim)
	grid := Dim{int(pieces(op.Rows, run)), 1, 1}
	to = append(to, launch(names.rmsnormGrad[op.Type], grid, block, block.Y*int(op.Dim*4), &p))
	return sumBlocks{partial: work, y: dweight, out: op.Out, blocks: int64(grid.X), cols: op.Dim}.append(to), nil
}

// WorkBytes returns the work memory of Backward.
func (op RMSNorm) WorkBytes() int64 { return align(pieces(op.Rows, runOf(op.Rows)) * op.Dim * 4) }

func (op RMSNorm) check(name string) error {
	if !(op.Eps > 0) {
		return unsupported(name, "eps is %v, want a positive number", op.Eps)
	}
	if err := checkOut(name, op.Out); err != nil {
		return err
	}
	return check(name, op.Type, size{"rows", op.Rows}, size{"dim", op.Dim})
}

// checkOut refuses an unknown type of results.
func checkOut(name string, t Type) error {
	if err := check(name, t); err != nil {
		return unsupported(name, "type of the result is %v, want %v, %v or %v", t, F32, BF16, F16)
	}
	return nil
}
