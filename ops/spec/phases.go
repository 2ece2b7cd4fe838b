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

// InferElementwise is the shape rule of ops whose inputs and output have the same shape.
func InferElementwise(in []Operand, names ...string) ([]Operand, error) {
	want := make([]InputRule, len(names))
	for i, name := range names {
		want[i] = FloatInput(name, 0).OrMore()
	}
	if err := WantInputs(in, want...); err != nil {
		return nil, err
	}
	for i, name := range names {
		if err := WantShape(name, in[i].Shape, in[0].Shape...); err != nil {
			return nil, err
		}
	}
	return in[:1], nil
}

// Unary returns the Bind of an elementwise op of one input. out may be the input.
func Unary[T cpu.Float](f func(dst, x []T)) func(k *cpu.Kernel, in, out []Arg) {
	return func(k *cpu.Kernel, in, out []Arg) {
		BindRows(k, out[0].Elements(), 1, func(lo, hi int) {
			f(cpu.Slice[T](out[0].Buf)[lo:hi], cpu.Slice[T](in[0].Buf)[lo:hi])
		})
	}
}

// Binary is unary for two inputs. out may be one of them.
func Binary[T cpu.Float](f func(dst, x, y []T)) func(k *cpu.Kernel, in, out []Arg) {
	return func(k *cpu.Kernel, in, out []Arg) {
		BindRows(k, out[0].Elements(), 1, func(lo, hi int) {
			f(cpu.Slice[T](out[0].Buf)[lo:hi], cpu.Slice[T](in[0].Buf)[lo:hi], cpu.Slice[T](in[1].Buf)[lo:hi])
		})
	}
}

// Invert is a counting sort. For each v = 0, 1, ... it lists the i in [0,n) for which values(i) contains v, in
// ascending order. It writes these lists one after the other, and sets ends[v] to the end of the list of v.
func Invert(n int, values func(i int) []int32, lists, ends []int32) {
	clear(ends)
	for i := range n {
		for _, v := range values(i) {
			ends[v]++
		}
	}
	sum := int32(0)
	for v, count := range ends {
		ends[v], sum = sum, sum+count // the start of the list; the loop below moves it to the end
	}
	for i := range n {
		for _, v := range values(i) {
			lists[ends[v]] = int32(i)
			ends[v]++
		}
	}
}

// ListOf returns the list of v that invert has written.
func ListOf(lists, ends []int32, v int) []int32 {
	first := int32(0)
	if v > 0 {
		first = ends[v-1]
	}
	return lists[first:ends[v]]
}
