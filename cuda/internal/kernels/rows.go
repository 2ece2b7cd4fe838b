package kernels

// ColumnSum is the sum of the rows of x [Rows,Cols], the gradient of a bias: rows.cu.
type ColumnSum struct {
	Type       Type // of x
	Out        Type // of the sum
	Rows, Cols int64
}

type columnSumParams struct {
	x, partial      Ptr
	rows, cols, run int64
}

// Forward appends y [Cols] = the sum of the rows.
func (op ColumnSum) Forward(to []Launch, x, y, work Ptr) ([]Launch, error) {
	const name = "column sum"
	if err := check(name, op.Type, size{"rows", op.Rows}, size{"cols", op.Cols}); err != nil {
		return to, err
	}
	if err := checkOut(name, op.Out); err != nil {
		return to, err
	}
	run := runOf(op.Rows)
	n := pieces(op.Rows, run)
	grid := Dim{blocks(pieces(op.Cols, 32)).X, int(n), 1}
	p := columnSumParams{x, work, op.Rows, op.Cols, run}
	to = append(to, launch(names.columnSum[op.Type], grid, Dim{32, 8, 1}, 0, &p))
	return sumBlocks{partial: work, y: y, out: op.Out, blocks: n, cols: op.Cols}.append(to), nil
}

// WorkBytes returns the work memory of Forward.
func (op ColumnSum) WorkBytes() int64 { return align(pieces(op.Rows, runOf(op.Rows)) * op.Cols * 4) }

// runOf returns how many rows of a sum over rows one block adds: at least 32, and so many that there are 256 blocks at most,
// which fill a GPU while the second stage stays short. It decides the order of the sum.
func runOf(rows int64) int64 { return max(32, pieces(rows, 256)) }

// sumBlocks is the second stage of sums over rows: y [cols] = the sum of partial [blocks,cols], plus a bias or none.
type sumBlocks struct {
	partial, bias, y  Ptr
	blocks, cols      int64
	biasCols          int64
	out, biasElements Type
}

type sumBlocksParams struct {
	partial, bias, y       Ptr
	blocks, cols, biasCols int64
	outType, biasType      int32
}

func (op sumBlocks) append(to []Launch) []Launch {
	p := sumBlocksParams{
		op.partial, op.bias, op.y, op.blocks, op.cols, max(1, op.biasCols), int32(op.out), int32(op.biasElements),
	}
	lanes := int64(1)
	for lanes < 32 && lanes < op.blocks {
		lanes *= 2
	}
	return append(to, launch(names.sumBlocks, blocks(pieces(op.cols, 32)), Dim{32, int(lanes), 1}, 0, &p))
}
