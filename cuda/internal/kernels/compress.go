package kernels

// Compress are the kernels of the compression blocks of x [Batch,Seq,Heads,Dim], Len tokens each, Stride apart, all of them
// complete: compress.cu. Where Seq < Len there is no block, and the op's one row of zeros is to be filled.
type Compress struct {
	Type                   Type
	Batch, Seq, Heads, Dim int64
	Len, Stride            int64
}

type compressParams struct {
	x, pe, y                                       Ptr
	batch, seq, blocks, heads, dim, length, stride int64
}

// Blocks returns the number of complete blocks of a sequence.
func (op Compress) Blocks() int64 {
	if op.Seq < op.Len || op.Stride < 1 {
		return 0
	}
	return (op.Seq-op.Len)/op.Stride + 1
}

// Rows returns the number of rows of Gather: one for each block and head.
func (op Compress) Rows() int64 { return op.Batch * op.Blocks() * op.Heads }

// Mean appends y [Batch,Blocks,Heads,Dim], the mean of each block.
func (op Compress) Mean(to []Launch, x, y Ptr) ([]Launch, error) {
	return op.append(to, "compress mean", names.compressMean, compressParams{x: x, y: y}, op.Rows()*op.Dim)
}

// MeanGrad appends dx of Mean.
func (op Compress) MeanGrad(to []Launch, dy, dx Ptr) ([]Launch, error) {
	return op.append(to, "gradient of compress mean", names.compressMeanGrad, compressParams{x: dy, y: dx}, op.elements())
}

// Gather appends rows [Rows,Len*Dim], the blocks with pe [Len,Dim] added: the operand of the product with W1.
func (op Compress) Gather(to []Launch, x, pe, rows Ptr) ([]Launch, error) {
	p := compressParams{x: x, pe: pe, y: rows}
	return op.append(to, "compress gather", names.compressGather, p, op.Rows()*op.Len*op.Dim)
}

// Scatter appends dx from the gradient of Gather's rows.
func (op Compress) Scatter(to []Launch, drows, dx Ptr) ([]Launch, error) {
	return op.append(to, "compress scatter", names.compressScatter, compressParams{x: drows, y: dx}, op.elements())
}

func (op Compress) elements() int64 { return op.Batch * op.Seq * op.Heads * op.Dim }

func (op Compress) append(to []Launch, name string, kernel byType, p compressParams, n int64) ([]Launch, error) {
	err := check(name, op.Type, size{"batch", op.Batch}, size{"tokens", op.Seq}, size{"heads", op.Heads},
		size{"dim", op.Dim}, size{"block length", op.Len})
	switch {
	case err != nil:
		return to, err
	case op.Stride < 1 || op.Len%op.Stride != 0:
		return to, unsupported(name, "stride %d does not divide the block length %d", op.Stride, op.Len)
	case op.Seq < op.Len:
		return to, unsupported(name, "%d tokens hold no block of %d", op.Seq, op.Len)
	}
	p.batch, p.seq, p.blocks, p.heads, p.dim = op.Batch, op.Seq, op.Blocks(), op.Heads, op.Dim
	p.length, p.stride = op.Len, op.Stride
	return append(to, launch(kernel[op.Type], elements(op.Type, n), threads, 0, &p)), nil
}
