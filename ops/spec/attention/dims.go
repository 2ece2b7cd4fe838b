package attention

import (
	"math"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// dims are the sizes of an attention op. Methods name a query or a key by its sequence and its position in that
// sequence.
type dims struct {
	b              int // batch
	queryHeads     int // Hq: query heads
	groups         int // Hkv
	h              int // query heads of a group
	keyDim         int // D: key dim
	valueDim       int // Dv: value dim
	tileQueries    int // queries of a tile; each has h rows
	spec.Sequences     // the queries are the tokens
}

// maxTileRows bounds the rows of a tile, unless one query of a group has more: the rows are the heads of the group at a
// few adjoining queries. It is a multiple of 6, the number of rows of the widest register tile of cpu.Tile.
const maxTileRows = 60

// dimsOf returns the sizes of q [B,S,Hq,D], k [B,T,Hkv,D] and v [B,T,Hkv,Dv], which infer has accepted. Each row of the
// batch is one sequence.
func dimsOf(q, k, v tensor.Shape) dims {
	h := q[2] / k[2]
	return dims{b: q[0], queryHeads: q[2], groups: k[2], h: h, keyDim: q[3], valueDim: v[3],
		tileQueries: max(1, maxTileRows/h),
		Sequences:   spec.SequencesOf(nil, q[1], k[1], spec.CompressionBlocks{})}
}

// maxTokens returns the most tokens of the sequences of q [B,S,Hq,D] and k [B,T,Hkv,D], the first two inputs.
func maxTokens(keys spec.CompressionBlocks, in []spec.Operand) int {
	return keys.MaxTokens(in[0].Shape[1], in[1].Shape[1])
}

// splitDims returns the inputs q, k, v, ... and their sizes. It removes input n if that is a table of documents. c are
// the blocks of the keys.
func splitDims(in []spec.Arg, n int, c spec.CompressionBlocks) ([]spec.Arg, dims) {
	in, table := spec.SplitTable(in, n)
	a := dimsOf(in[0].Shape, in[1].Shape, in[2].Shape)
	a.Sequences = spec.SequencesOf(table, a.RowTokens, a.RowKeys, c)
	return in, a
}

// bindChecked is splitDims of an op with three inputs. The kernel first checks where the queries start.
func bindChecked(k *cpu.Kernel, in []spec.Arg, c spec.CompressionBlocks) ([]spec.Arg, dims) {
	in, a := splitDims(in, 3, c)
	a.BindCheckStart(k)
	return in, a
}

// queryAt returns the offset in an array [B,S,Hq,c] of the first of the h adjoining rows of group g at query t.
func (a dims) queryAt(seq spec.Sequence, g, t, c int) int {
	return ((seq.Row*a.RowTokens+seq.FirstToken+t)*a.queryHeads + g*a.h) * c
}

// keyAt returns the offset in an array [B,T,Hkv,c] of the row of a key of group g. The next key lies groups*c elements
// further.
func (a dims) keyAt(seq spec.Sequence, g, key, c int) int {
	return ((seq.Row*a.RowKeys+seq.FirstKey+key)*a.groups + g) * c
}

// statAt returns the offset in an array [B,Hq,S] of query t of the first head of group g. The next head lies RowTokens
// elements further.
func (a dims) statAt(seq spec.Sequence, g, t int) int {
	return (seq.Row*a.queryHeads+g*a.h)*a.RowTokens + seq.FirstToken + t
}

// SoftmaxScale is 1/sqrt(D).
func SoftmaxScale[T cpu.Float](d int) T { return T(1 / math.Sqrt(float64(d))) }

// overlap returns the part of the run [lo,hi) that lies in [from,to), relative to from. If it is empty, both results
// are equal.
func overlap(lo, hi, from, to int) (int, int) {
	lo = min(max(lo, from), to)
	return lo - from, max(lo, min(hi, to)) - from
}

// tileRows returns the largest number of rows of a tile.
func (a dims) tileRows() int { return a.tileQueries * a.h }

// bindGroups adds to k a phase that calls f for the pieces 0 to n-1 of each group of each row of the batch.
func bindGroups(k *cpu.Kernel, a dims, n int, f func(b, g, piece int, w *cpu.Worker)) {
	k.Phase(a.b*a.groups*n, func(piece int, w *cpu.Worker) {
		bg := piece / n
		f(bg/a.groups, bg%a.groups, piece%n, w)
	})
}

// bindQueries adds to k a phase that calls f, for each group, with runs [t0,t1) of at most size queries of a sequence.
// The newest queries come first, since they may see the most keys.
func bindQueries(k *cpu.Kernel, a dims, size int, f func(seq spec.Sequence, g, t0, t1 int, w *cpu.Worker)) {
	n := cpu.CeilDiv(a.RowTokens, size)
	bindGroups(k, a, n, func(b, g, piece int, w *cpu.Worker) {
		from, to := spec.PieceBounds(n-1-piece, size, a.RowTokens)
		a.Tiles(b, from, to, size, func(seq spec.Sequence, t0, t1 int) { f(seq, g, t0, t1, w) })
	})
}

// bindKeys adds to k a phase that calls f, for each group, with runs [lo,hi) of at most keyTile keys of a sequence.
func bindKeys(k *cpu.Kernel, a dims, f func(seq spec.Sequence, g, lo, hi int, w *cpu.Worker)) {
	bindGroups(k, a, cpu.CeilDiv(a.RowKeys, keyTile), func(b, g, piece int, w *cpu.Worker) {
		from, to := spec.PieceBounds(piece, keyTile, a.RowKeys)
		a.KeyTiles(b, from, to, keyTile, func(seq spec.Sequence, lo, hi int) { f(seq, g, lo, hi, w) })
	})
}

// gatherRows copies the rows of group g at the queries [t0,t1) of x [B,S,Hq,c] to dst [(t1-t0)*h,c].
func gatherRows[T cpu.Float](a dims, dst, x []T, seq spec.Sequence, g, t0, t1, c int) {
	n := a.h * c
	for t := t0; t < t1; t++ {
		copy(dst[(t-t0)*n:][:n], x[a.queryAt(seq, g, t, c):])
	}
}

// scatterRows is the inverse of gatherRows.
func scatterRows[T cpu.Float](a dims, x, src []T, seq spec.Sequence, g, t0, t1, c int) {
	n := a.h * c
	for t := t0; t < t1; t++ {
		copy(x[a.queryAt(seq, g, t, c):][:n], src[(t-t0)*n:])
	}
}
