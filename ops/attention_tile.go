package ops

import (
	"math"
	"slices"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// keyTile is the number of keys of a transposed tile: the columns of the widest register tile of cpu.Tile in float32.
const keyTile = 64

// transposed holds keys or values transposed: T*c elements for each group of each row of the batch. Each sequence is cut into tiles
// of its own, [c,n]. n is keyTile, or less in the last tile.
type transposed[T cpu.Float] struct {
	dims
	buf *cpu.Buf
	c   int
}

// bindTranspose adds to k a phase that transposes keys or values x [B,T,Hkv,c].
func bindTranspose[T cpu.Float](k *cpu.Kernel, a dims, x Arg) transposed[T] {
	y := transposed[T]{a, cpu.Work[T](k, x.Elements()), x.last()}
	bindKeys(k, a, keyTile, func(seq sequence, g, lo, hi int, _ *cpu.Worker) {
		n := hi - lo
		cpu.Transpose(n, y.c, y.group(seq, g).tiles[lo*y.c:], n, cpu.Slice[T](x.Buf)[y.keyAt(seq, lo, g, y.c):], y.hkv*y.c)
	})
	return y
}

// group returns the keys group a sequence and a group.
func (x transposed[T]) group(seq sequence, g int) transposedKeys[T] {
	at := (seq.b*x.hkv+g)*x.t + seq.firstKey
	return transposedKeys[T]{cpu.Slice[T](x.buf)[at*x.c:][:seq.t*x.c], seq.t, x.c}
}

// transposedKeys are the n keys of a sequence.
type transposedKeys[T cpu.Float] struct {
	tiles []T
	n, c  int
}

// dots sets s[r*ld + i-lo] = q[r]·x[i] for rows r of q [rows,c] and keys i in [lo,hi) of x.
func dots[T cpu.Float](rows int, q []T, x transposedKeys[T], lo, hi int, s []T, ld int) {
	for at := lo; at < hi; {
		col := at % keyTile
		first := at - col // first key of the tile
		width := min(keyTile, x.n-first)
		n := min(width-col, hi-at)
		cpu.Tile(rows, n, x.c, q, x.c, 1, x.tiles[first*x.c+col:], width, s[at-lo:], ld, false)
		at += n
	}
}

// chunkKeys is the number of keys whose scores a tile holds at a time, a multiple of keyTile.
const chunkKeys = 8 * keyTile

// maxStride is the distance between the rows of scores of a chunk: cpu.PaddedRow(chunkKeys).
const maxStride = chunkKeys + 16

// chunkEnd returns the end of the chunk that begins at key at: a multiple of keyTile, or hi for the last chunk.
func chunkEnd(at, hi int) int { return min(hi, (at+chunkKeys)/keyTile*keyTile) }

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
		lo, hi := part(piece%f.tiles, keyTile, rows)
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
	first := seq.b * f.tiles
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
		cpu.Tile(m, c, n, w, wrs, wcs, rows, ld, dst, c, true)
		return
	}
	for j := range n {
		if row := rows[j*ld:][:c]; finite(row) {
			copy(finiteRows[j*c:], row)
		} else {
			clear(finiteRows[j*c:][:c])
		}
	}
	cpu.Tile(m, c, n, w, wrs, wcs, finiteRows, c, dst, c, true)
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

// softmax is the state of an online softmax (arXiv 1805.02867) for the rows of a tile, which see their keys part by part.
type softmax[T cpu.Float] struct {
	max, sum []T // of each row: the largest score so far, unscaled, and the sum of exp((score - max)*scale)
	scale    T
}

// start resets the state: no row has seen a key.
func (s softmax[T]) start() {
	for r := range s.max {
		s.max[r], s.sum[r] = T(math.Inf(-1)), 0
	}
}

// add adds the scores x[lo:hi] to the state of row r. It replaces these scores by their exponentials and the rest of x by zeros.
// acc is what the row has accumulated so far; add scales it to the new maximum. A score of -Inf counts as not seen.
func (s softmax[T]) add(r int, x []T, lo, hi int, acc []T) {
	clear(x[:lo])
	clear(x[hi:])
	if x = x[lo:hi]; len(x) == 0 {
		return
	}
	m := cpu.Max(x)
	if math.IsInf(float64(m), -1) { // -Inf - -Inf is NaN
		clear(x)
		return
	}
	if m > s.max[r] {
		if s.sum[r] != 0 {
			a := T(math.Exp(float64((s.max[r] - m) * s.scale)))
			s.sum[r] *= a
			cpu.Scale(acc, a)
		}
		s.max[r] = m
	}
	s.sum[r] += expScores(x, s.max[r], s.scale, 0)
}

// finish divides acc, what row r has accumulated, by the row's sum, and returns the row's LSE. A row that sees no key gets zeros
// and an LSE of -Inf.
func (s softmax[T]) finish(r int, acc []T) T {
	if s.sum[r] == 0 {
		clear(acc)
		return T(math.Inf(-1))
	}
	cpu.Scale(acc, 1/s.sum[r])
	return s.max[r]*s.scale + T(math.Log(float64(s.sum[r])))
}

// large is the largest magnitude of a scaled score or an LSE that is subtracted after the scaling. Larger numbers are too coarse
// in float32: subtracting them would change probabilities by more than 2e-6, and by any factor for scores of 1e9.
const large = 64

func isLarge[T cpu.Float](x T) bool { return x > large || x < -large }

// expScores replaces the scores x by exp((x - top)*scale - logSum) and returns the sum of the results. It subtracts a large top
// before the scaling.
func expScores[T cpu.Float](x []T, top, scale, logSum T) T {
	if isLarge(top * scale) {
		for i := range x {
			x[i] -= top
		}
		top = 0
	}
	return cpu.ExpSum(x, x, scale, top*scale+logSum)
}

// softmaxGrad replaces the scores s[lo:hi] of one row by the probabilities p, and dp[lo:hi] = do·v by the gradients of the
// unscaled scores, p*(dp - delta)*scale. It sets the rest of s and dp to zero. row holds the row's numbers in rowStats.
func softmaxGrad[T cpu.Float](s, dp []T, lo, hi int, row []T, scale T) {
	clear(s[:lo])
	clear(s[hi:])
	clear(dp[:lo])
	clear(dp[hi:])
	if s, dp = s[lo:hi], dp[lo:hi]; len(s) > 0 {
		expScores(s, row[rowMax], scale, row[rowLogSum])
		cpu.SoftmaxGrad(dp, s, dp, row[rowDelta], scale)
	}
}
