package attention

import (
	"math"
	"slices"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// finiteTiles holds 1 for each tile of keys or values whose numbers are finite in all groups, else 0: int32 [B,tiles].
// The tiles count from the start of a row of the batch.
type finiteTiles struct {
	buf   *cpu.Buf
	tiles int
}

// bindFinite adds to k a phase that tests x [B,T,Hkv,c].
func bindFinite[T cpu.Float](k *cpu.Kernel, x spec.Arg) finiteTiles {
	b, rows, width := x.Shape[0], x.Shape[1], x.Shape[2]*x.Shape[3]
	f := finiteTiles{cpu.Work[int32](k, b*cpu.CeilDiv(rows, keyTile)), cpu.CeilDiv(rows, keyTile)}
	k.Phase(b*f.tiles, func(piece int, _ *cpu.Worker) {
		lo, hi := spec.PieceBounds(piece%f.tiles, keyTile, rows)
		first := piece / f.tiles * rows
		cpu.Slice[int32](f.buf)[piece] = 0
		if finite(cpu.Slice[T](x.Buf)[(first+lo)*width : (first+hi)*width]) {
			cpu.Slice[int32](f.buf)[piece] = 1
		}
	})
	return f
}

// areFinite reports whether all tiles that hold the keys [lo,hi) of a sequence are finite.
func (f finiteTiles) areFinite(seq spec.Sequence, lo, hi int) bool {
	first := seq.Row * f.tiles
	return !slices.Contains(cpu.Slice[int32](f.buf)[first+(seq.FirstKey+lo)/keyTile:first+cpu.CeilDiv(seq.FirstKey+hi,
		keyTile)], 0)
}

// finite reports whether all of x is finite. It may return false for finite numbers whose squares overflow float64.
func finite[T cpu.Float](x []T) bool { return cpu.SumSquares(x) <= math.MaxFloat64 }

// weightedRows is the product of weights [m,n] and rows [n,c]. A weight is 0 where it is not visible.
type weightedRows[T cpu.Float] struct {
	m, n, c int
	w       []T // weight (i,j) is w[i*rs+j*cs]
	rs, cs  int
	rows    []T // row j is rows[j*ld:][:c]
	ld      int
	visible func(i, j int) bool
}

// addTo adds the product to dst [m,c].
//
// A weight that is not visible is 0, but 0 times NaN is NaN. So, unless areFinite, addTo replaces the rows that are not
// finite by zeros in the product, which changes no bit of its other terms. It then adds these rows where they are
// visible. scratch holds n*c numbers.
func (x weightedRows[T]) addTo(dst []T, areFinite bool, scratch []T) {
	if areFinite {
		cpu.TileAdd(x.m, x.c, x.n, x.w, x.rs, x.cs, x.rows, x.ld, dst, x.c)
		return
	}
	for j := range x.n {
		if row := x.rows[j*x.ld:][:x.c]; finite(row) {
			copy(scratch[j*x.c:], row)
		} else {
			clear(scratch[j*x.c:][:x.c])
		}
	}
	cpu.TileAdd(x.m, x.c, x.n, x.w, x.rs, x.cs, scratch, x.c, dst, x.c)
	for j := range x.n {
		row := x.rows[j*x.ld:][:x.c]
		if finite(row) {
			continue
		}
		for i := range x.m {
			if x.visible(i, j) {
				cpu.Axpy(x.w[i*x.rs+j*x.cs], row, dst[i*x.c:][:x.c])
			}
		}
	}
}
