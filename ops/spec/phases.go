package spec

import (
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// ByType returns the instance of a generic function for the type dt: f64 for float64, f32 for float32 and for BFloat16,
// with which kernels compute in float32.
func ByType[F any](dt tensor.Dtype, f32, f64 F) F {
	if dt == tensor.Float64 {
		return f64
	}
	return f32
}

// WorkLike returns work memory with the type and shape of o.
func WorkLike(k *cpu.Kernel, o Arg) Arg {
	if o.Dtype == BFloat16 {
		return Arg{o.Operand, cpu.Work[cpu.BFloat16](k, o.Elements())}
	}
	return Arg{o.Operand, ByType(o.Dtype, cpu.Work[float32], cpu.Work[float64])(k, o.Elements())}
}

// PieceElements is the number of elements in one piece of an elementwise kernel.
const PieceElements = 1 << 14

// RowBlock is the number of rows that one piece of a reduction over rows sums up. It determines the order of the sum.
const RowBlock = 64

// PieceBounds returns the bounds [lo,hi) of piece i of n, which is cut into CeilDiv(n, size) pieces.
func PieceBounds(i, size, n int) (lo, hi int) { return i * size, min(n, (i+1)*size) }

// BindRows adds to k a phase that calls f for pieces [lo,hi) of n rows. A row counts as cols elements of work, and a
// piece has about PieceElements elements.
func BindRows(k *cpu.Kernel, n, cols int, f func(lo, hi int)) {
	size := RowsPerPiece(cols)
	k.Phase(cpu.CeilDiv(n, size), func(piece int, _ *cpu.Worker) { f(PieceBounds(piece, size, n)) })
}

// RowsPerPiece returns the number of rows of cols elements in a piece of about PieceElements elements.
func RowsPerPiece(cols int) int { return max(1, PieceElements/cols) }

// BindColumnSums adds to k the phases that set dst [cols] to the sum of the rows of x [rows,cols]. They sum up each
// block of rows by itself, then the blocks in ascending order.
func BindColumnSums[T cpu.Float](k *cpu.Kernel, x *cpu.Buf, rows, cols int, dst *cpu.Buf) {
	blocks := cpu.CeilDiv(rows, RowBlock)
	partial := cpu.Work[T](k, blocks*cols)
	k.Phase(blocks, func(piece int, _ *cpu.Worker) {
		lo, hi := PieceBounds(piece, RowBlock, rows)
		AddRows(cpu.Slice[T](partial)[piece*cols:][:cols], cpu.Slice[T](x)[lo*cols:hi*cols], cols)
	})
	BindSumBlocks[T](k, partial, blocks, cols, dst)
}

// BindSumBlocks adds to k a phase that sets dst [cols] to the sum of the rows of partial [blocks,cols], in ascending
// order.
func BindSumBlocks[T cpu.Float](k *cpu.Kernel, partial *cpu.Buf, blocks, cols int, dst *cpu.Buf) {
	const width = 256
	k.Phase(cpu.CeilDiv(cols, width), func(piece int, _ *cpu.Worker) {
		lo, hi := PieceBounds(piece, width, cols)
		sum, from := cpu.Slice[T](dst)[lo:hi], cpu.Slice[T](partial)
		copy(sum, from[lo:hi])
		for i := 1; i < blocks; i++ {
			cpu.Add(sum, sum, from[i*cols+lo:i*cols+hi])
		}
	})
}

// AddRows sets dst to the sum of the rows of x, in ascending order. x has at least one row.
func AddRows[T cpu.Float](dst, x []T, cols int) {
	copy(dst, x[:cols])
	for x = x[cols:]; len(x) > 0; x = x[cols:] {
		cpu.Add(dst, dst, x[:cols])
	}
}

// BindClear adds to k a phase that zeroes x.
func BindClear[T cpu.Float](k *cpu.Kernel, x Arg) {
	BindRows(k, x.Elements(), 1, func(lo, hi int) {
		clear(cpu.Slice[T](x.Buf)[lo:hi])
	})
}

// BindCopy adds to k a phase that copies x to work memory, and returns the copy.
func BindCopy[T cpu.Float](k *cpu.Kernel, x Arg) Arg {
	y := WorkLike(k, x)
	BindRows(k, x.Elements(), 1, func(lo, hi int) { copy(cpu.Slice[T](y.Buf)[lo:hi], cpu.Slice[T](x.Buf)[lo:hi]) })
	return y
}
