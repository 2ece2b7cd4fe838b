package ops

import (
	"math"
	"slices"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// finiteTiles holds 1 for each tile of keys or values whose numbers are finite in all groups, else 0: int32 [B,tiles]. The tiles
// count from the start of a row of the batch.
type finiteTiles struct {
	buf   *cpu.Buf
	tiles int
}

// bindFinite adds to k a phase that tests x [B,T,Hkv,c].
func bindFinite[T cpu.Float](k *cpu.Kernel, x Arg) finiteTiles {
	b, rows, width := x.Shape[0], x.Shape[1], x.Shape[2]*x.Shape[3]
	f := finiteTiles{cpu.Work[int32](k, b*cpu.CeilDiv(rows, keyTile)), cpu.CeilDiv(rows, keyTile)}
	k.Phase(b*f.tiles, func(piece int, _ *cpu.Worker) {
		lo, hi := pieceBounds(piece%f.tiles, keyTile, rows)
		first := piece / f.tiles * rows
		cpu.Slice[int32](f.buf)[piece] = 0
		if finite(cpu.Slice[T](x.Buf)[(first+lo)*width : (first+hi)*width]) {
			cpu.Slice[int32](f.buf)[piece] = 1
		}
	})
	return f
}

// areFinite reports whether all tiles that hold the keys [lo,hi) of a sequence are finite.
func (f finiteTiles) areFinite(seq sequence, lo, hi int) bool {
	first := seq.row * f.tiles
	return !slices.Contains(cpu.Slice[int32](f.buf)[first+(seq.firstKey+lo)/keyTile:first+cpu.CeilDiv(seq.firstKey+hi, keyTile)], 0)
}

// finite reports whether all of x is finite. It may return false for finite numbers whose squares overflow float64.
func finite[T cpu.Float](x []T) bool { return cpu.SumSquares(x) <= math.MaxFloat64 }

// addWeighted adds weights·rows to dst [m,c]. Element (i,j) of weights [m,n] is w[i*wrs+j*wcs]. rows is [n,c], its
// rows ld elements apart.
//
// A weight is 0 where visible(i,j) is false, but 0 times NaN is NaN. So, unless areFinite, addWeighted replaces the rows that are not
// finite by zeros in the product, which changes no bit of its other terms. It then adds these rows where they are visible. finiteRows
// is scratch for n rows.
func addWeighted[T cpu.Float](m, c, n int, w []T, wrs, wcs int, rows []T, ld int, dst []T, areFinite bool, finiteRows []T, visible func(i, j int) bool) {
	if areFinite {
		cpu.TileAdd(m, c, n, w, wrs, wcs, rows, ld, dst, c)
		return
	}
	for j := range n {
		if row := rows[j*ld:][:c]; finite(row) {
			copy(finiteRows[j*c:], row)
		} else {
			clear(finiteRows[j*c:][:c])
		}
	}
	cpu.TileAdd(m, c, n, w, wrs, wcs, finiteRows, c, dst, c)
	for j := range n {
		row := rows[j*ld:][:c]
		if finite(row) {
			continue
		}
		for i := range m {
			if visible(i, j) {
				cpu.Axpy(w[i*wrs+j*wcs], row, dst[i*c:][:c])
			}
		}
	}
}
