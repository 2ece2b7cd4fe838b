package ops

import (
	"math"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// keyTile is the number of keys of a packed tile: the columns of the widest register tile of cpu.Tile in float32.
const keyTile = 64

// packed holds keys or values transposed, in tiles: [B,Hkv,ceil(T/keyTile),c,keyTile]. What lies past the last key is
// undefined and never read.
type packed[T cpu.Float] struct {
	buf                *cpu.Buf
	rows, heads, tiles int // T, Hkv, tiles of a group
	c                  int
}

// pack adds to k the phase that packs x [B,T,Hkv,c].
func pack[T cpu.Float](k *cpu.Kernel, x Arg) packed[T] {
	p := packed[T]{rows: x.Shape[1], heads: x.Shape[2], c: x.Shape[3]}
	p.tiles = (p.rows + keyTile - 1) / keyTile
	groups := x.Shape[0] * p.heads
	p.buf = cpu.Work[T](k, groups*p.tiles*p.c*keyTile)
	k.Phase(groups*p.tiles, func(piece int, _ *cpu.Worker) {
		group, first := piece/p.tiles, piece%p.tiles*keyTile
		b, g := group/p.heads, group%p.heads
		n, stride := min(keyTile, p.rows-first), p.heads*p.c
		src := cpu.Slice[T](x.Buf)[((b*p.rows+first)*p.heads+g)*p.c:]
		dst := cpu.Slice[T](p.buf)[piece*p.c*keyTile:]
		for i := range p.c {
			row := dst[i*keyTile:][:n]
			for j := range row {
				row[j] = src[j*stride+i]
			}
		}
	})
	return p
}

// group returns the tiles of one group.
func (p packed[T]) group(b, g int) []T {
	n := p.tiles * p.c * keyTile
	return cpu.Slice[T](p.buf)[(b*p.heads+g)*n:][:n]
}

// dots sets s[r*ld + i-lo] = q[r]·x[i] for rows r of q [rows,c] and rows i in [lo,hi) of x, whose tiles are given.
func dots[T cpu.Float](rows int, q []T, tiles []T, c, lo, hi int, s []T, ld int) {
	for at := lo; at < hi; {
		tile, col := at/keyTile, at%keyTile
		n := min(keyTile-col, hi-at)
		cpu.Tile(rows, n, c, q, c, 1, tiles[tile*c*keyTile+col:], keyTile, s[at-lo:], ld, false)
		at += n
	}
}

// chunkKeys is the number of keys whose scores a tile holds at a time, a multiple of keyTile.
const chunkKeys = 8 * keyTile

// chunkEnd returns the end of the chunk that begins at key at, of the keys up to hi: a whole number of tiles, but the last.
func chunkEnd(at, hi int) int { return min(hi, (at+chunkKeys)/keyTile*keyTile) }

// softmax is the state of the rows of a tile while they see their keys part by part (online softmax, arXiv 1805.02867):
// the largest scaled score so far, and the sum of the exponentials below it.
type softmax[T cpu.Float] struct {
	max, sum []T
	scale    T
}

// start begins with rows that have seen nothing.
func (s softmax[T]) start() {
	for r := range s.max {
		s.max[r], s.sum[r] = T(math.Inf(-1)), 0
	}
}

// add lets row r see the scores x[lo:hi] and replaces x by their exponentials, zero elsewhere. What the row has
// accumulated before, acc, is scaled to the new maximum. Scores of -Inf are as if not seen.
func (s softmax[T]) add(r int, x []T, lo, hi int, acc []T) {
	clear(x[:lo])
	clear(x[hi:])
	if x = x[lo:hi]; len(x) == 0 {
		return
	}
	m := cpu.Max(x) * s.scale
	if math.IsInf(float64(m), -1) { // there may be no maximum yet to take them from
		clear(x)
		return
	}
	if m > s.max[r] {
		if s.sum[r] != 0 {
			a := T(math.Exp(float64(s.max[r] - m)))
			s.sum[r] *= a
			cpu.Scale(acc, a)
		}
		s.max[r] = m
	}
	s.sum[r] += cpu.ExpSum(x, x, s.scale, s.max[r])
}

// finish divides what row r has accumulated by its sum and returns its LSE; nothing seen is zeros and -Inf.
func (s softmax[T]) finish(r int, acc []T) T {
	if s.sum[r] == 0 {
		clear(acc)
		return T(math.Inf(-1))
	}
	cpu.Scale(acc, 1/s.sum[r])
	return s.max[r] + T(math.Log(float64(s.sum[r])))
}

// softmaxGrad replaces the scores s[lo:hi] of one row by its probabilities p and dp = do·v by the gradients of the
// unscaled scores, p*(dp - delta)*scale; both are zero elsewhere.
func softmaxGrad[T cpu.Float](s, dp []T, lo, hi int, lse, delta, scale T) {
	clear(s[:lo])
	clear(s[hi:])
	clear(dp[:lo])
	clear(dp[hi:])
	if s, dp = s[lo:hi], dp[lo:hi]; len(s) > 0 {
		cpu.ExpSum(s, s, scale, lse)
		cpu.SoftmaxGrad(dp, s, dp, delta, scale)
	}
}

// loadLSE is an LSE as the exponent of a probability exp(score - lse) takes it: +Inf, that is p = 0, for a row that sees
// nothing.
func loadLSE[T cpu.Float](lse T) T {
	if math.IsInf(float64(lse), -1) {
		return T(math.Inf(1))
	}
	return lse
}
