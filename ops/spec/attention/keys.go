package attention

import (
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// keyTile is the number of keys of a transposed tile: the columns of the widest register tile of cpu.Tile in float32.
const keyTile = 64

// transposed holds keys or values transposed: T*c elements for each group of each row of the batch. Each sequence is
// cut into tiles of its own, [c,n]. n is keyTile, or less in the last tile.
type transposed[T cpu.Float] struct {
	dims
	buf   *cpu.Buf
	c     int
	pairs bool // the elements are pairs of bf16
}

// widthOf returns c for x [...,c], or c/2 for x in bf16, whose elements are then pairs: see cpu.TilePairs.
func widthOf(x spec.Arg) int {
	if x.Dtype == spec.BFloat16 {
		return x.Last() / 2
	}
	return x.Last()
}

// bindTranspose adds to k a phase that transposes keys or values x [B,T,Hkv,c], except tiles that no query sees. In bf16
// it transposes pairs; c is even.
func bindTranspose[T cpu.Float](k *cpu.Kernel, a dims, x spec.Arg) transposed[T] {
	c := widthOf(x)
	y := transposed[T]{a, cpu.Work[T](k, x.Elements()/x.Last()*c), c, x.Dtype == spec.BFloat16}
	bindKeys(k, a, func(seq spec.Sequence, g, lo, hi int, _ *cpu.Worker) {
		n := hi - lo
		if lo >= a.VisibleKeys(seq) {
			return
		}
		cpu.Transpose(n, y.c, y.group(seq, g).tiles[lo*y.c:], n, cpu.Slice[T](x.Buf)[y.keyAt(seq, g, lo, y.c):], y.groups*y.c)
	})
	return y
}

func (x transposed[T]) group(seq spec.Sequence, g int) transposedKeys[T] {
	at := (seq.Row*x.groups+g)*x.RowKeys + seq.FirstKey
	return transposedKeys[T]{cpu.Slice[T](x.buf)[at*x.c:][:seq.Keys*x.c], seq.Keys, x.c, x.pairs}
}

// transposedKeys are the n keys of a sequence.
type transposedKeys[T cpu.Float] struct {
	tiles []T
	n, c  int
	pairs bool
}

// dots sets s[r*ld + i-lo] = q[r]·x[i] for rows r of q [rows,c] and keys i in [lo,hi) of x. q and x are both of pairs
// or both not.
func dots[T cpu.Float](rows int, q []T, x transposedKeys[T], lo, hi int, s []T, ld int) {
	for at := lo; at < hi; {
		col := at % keyTile
		first := at - col // first key of the tile
		width := min(keyTile, x.n-first)
		n := min(width-col, hi-at)
		if tile := x.tiles[first*x.c+col:]; x.pairs {
			cpu.TilePairs(rows, n, x.c, float32s(q), x.c, 1, float32s(tile), width, float32s(s[at-lo:]), ld)
		} else {
			cpu.Tile(rows, n, x.c, q, x.c, 1, tile, width, s[at-lo:], ld)
		}
		at += n
	}
}

// chunkKeys is the number of keys whose scores a tile holds at a time, a multiple of keyTile.
const chunkKeys = 8 * keyTile

// maxScoreRow is the largest distance between the rows of scores of a tile, in elements: cpu.PaddedRow(chunkKeys).
const maxScoreRow = chunkKeys + 16

// chunkEnd returns the end of the chunk that begins at key at: a multiple of keyTile, or hi for the last chunk.
func chunkEnd(at, hi int) int { return min(hi, (at+chunkKeys)/keyTile*keyTile) }
