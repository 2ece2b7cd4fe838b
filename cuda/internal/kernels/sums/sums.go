// Package sums holds the kernels that sum rows and partial results.
package sums

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// The arguments of sums.cu.
type (
	columnSumParams struct {
		x, partial      kernels.Ref
		rows, cols, run int64
	}
	sumBlocksParams struct {
		partial, bias, y       kernels.Ref
		blocks, cols, biasCols int64
		outType, biasType      int32
	}
)

// AddColumns adds y [cols] = the sum of the rows of x [rows,cols], in two stages of fixed order.
func AddColumns(b *kernels.Builder, x, y kernels.Ref, out kernels.Type, rows, cols int64) {
	run := RowsOfPart(rows)
	parts := kernels.CeilDiv(rows, run)
	p := &columnSumParams{x, b.Work(parts * cols * 4), rows, cols, run}
	grid := kernels.Dim{X: kernels.GridStride(kernels.CeilDiv(cols, 32)).X, Y: int(parts), Z: 1}
	b.AddLaunch(b.Type.Name("column_sum"), grid, kernels.Dim{X: 32, Y: 8, Z: 1}, 0, p)
	AddParts(b, Parts{Partial: p.partial, Y: y, Count: parts, Cols: cols, Out: out})
}

// RowsOfPart returns how many rows one block of a sum over rows adds: at least 8, one for each of its warps. There are
// at most 256 blocks, which fill a GPU and keep the second stage short. The number depends on rows alone, which fixes
// the order of the sum.
func RowsOfPart(rows int64) int64 { return max(8, kernels.CeilDiv(rows, 256)) }

// Parts is the second stage of a sum: y [Cols] of type Out = the sum of Partial [Count,Cols] float32 plus an optional
// bias [BiasCols] of type BiasType, repeated.
type Parts struct {
	Partial, Bias, Y      kernels.Ref
	Count, Cols, BiasCols int64
	Out, BiasType         kernels.Type
}

// AddParts adds the second stage of a sum.
func AddParts(b *kernels.Builder, x Parts) {
	lanes := int64(1)
	for lanes < 32 && lanes < x.Count {
		lanes *= 2
	}
	grid, block := kernels.GridStride(kernels.CeilDiv(x.Cols, 32)), kernels.Dim{X: 32, Y: int(lanes), Z: 1}
	b.AddLaunch("nsa_sum_blocks_f32", grid, block, 0, &sumBlocksParams{
		x.Partial, x.Bias, x.Y, x.Count, x.Cols, max(1, x.BiasCols), int32(x.Out), int32(x.BiasType),
	})
}
