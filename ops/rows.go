package ops

import (
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// byType returns the instance of a generic function for the type dt, which is float32 or float64.
func byType[F any](dt tensor.Dtype, f32, f64 F) F {
	if dt == tensor.Float32 {
		return f32
	}
	return f64
}

// workLike returns work memory with the type and shape of o.
func workLike(k *cpu.Kernel, o Arg) Arg {
	return Arg{o.Operand, byType(o.Dtype, cpu.Work[float32], cpu.Work[float64])(k, o.Elements())}
}

// pieceElements is the number of elements in one piece of an elementwise kernel.
const pieceElements = 1 << 14

// rowBlock is the number of rows that one piece of a reduction over rows sums up. It determines the order of the sum.
const rowBlock = 64

// pieceBounds returns the bounds [lo,hi) of piece i of n, which is cut into CeilDiv(n, size) pieces.
func pieceBounds(i, size, n int) (lo, hi int) { return i * size, min(n, (i+1)*size) }

// bindRows adds to k a phase that calls f for pieces [lo,hi) of n rows. A row counts as cols elements of work, and a piece has about
// pieceElements elements.
func bindRows(k *cpu.Kernel, n, cols int, f func(lo, hi int)) {
	size := rowsPerPiece(cols)
	k.Phase(cpu.CeilDiv(n, size), func(piece int, _ *cpu.Worker) { f(pieceBounds(piece, size, n)) })
}

// rowsPerPiece returns the number of rows of cols elements in a piece of about pieceElements elements.
func rowsPerPiece(cols int) int { return max(1, pieceElements/cols) }

// bindColumnSums adds to k the phases that set dst [cols] to the sum of the rows of x [rows,cols]. They sum up each block of rows
// by itself, then the blocks in ascending order.
func bindColumnSums[T cpu.Float](k *cpu.Kernel, x *cpu.Buf, rows, cols int, dst *cpu.Buf) {
	blocks := cpu.CeilDiv(rows, rowBlock)
	partial := cpu.Work[T](k, blocks*cols)
	k.Phase(blocks, func(piece int, _ *cpu.Worker) {
		lo, hi := pieceBounds(piece, rowBlock, rows)
		addRows(cpu.Slice[T](partial)[piece*cols:][:cols], cpu.Slice[T](x)[lo*cols:hi*cols], cols)
	})
	bindSumBlocks[T](k, partial, blocks, cols, dst)
}

// bindSumBlocks adds to k a phase that sets dst [cols] to the sum of the rows of partial [blocks,cols], in ascending order.
func bindSumBlocks[T cpu.Float](k *cpu.Kernel, partial *cpu.Buf, blocks, cols int, dst *cpu.Buf) {
	const width = 256
	k.Phase(cpu.CeilDiv(cols, width), func(piece int, _ *cpu.Worker) {
		lo, hi := pieceBounds(piece, width, cols)
		sum, from := cpu.Slice[T](dst)[lo:hi], cpu.Slice[T](partial)
		copy(sum, from[lo:hi])
		for i := 1; i < blocks; i++ {
			cpu.Add(sum, sum, from[i*cols+lo:i*cols+hi])
		}
	})
}

// addRows sets dst to the sum of the rows of x, in ascending order. x has at least one row.
func addRows[T cpu.Float](dst, x []T, cols int) {
	copy(dst, x[:cols])
	for x = x[cols:]; len(x) > 0; x = x[cols:] {
		cpu.Add(dst, dst, x[:cols])
	}
}

// bindClear adds to k a phase that zeroes x.
func bindClear[T cpu.Float](k *cpu.Kernel, x Arg) {
	bindRows(k, x.Elements(), 1, func(lo, hi int) {
		clear(cpu.Slice[T](x.Buf)[lo:hi])
	})
}

// bindCopy adds to k a phase that copies x to work memory, and returns the copy.
func bindCopy[T cpu.Float](k *cpu.Kernel, x Arg) Arg {
	y := workLike(k, x)
	bindRows(k, x.Elements(), 1, func(lo, hi int) { copy(cpu.Slice[T](y.Buf)[lo:hi], cpu.Slice[T](x.Buf)[lo:hi]) })
	return y
}
