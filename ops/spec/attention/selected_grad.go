package attention

import (
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// inverseIndex lists, for each block of each group, the queries that have selected the block and see some of its keys,
// in ascending order.
type inverseIndex struct {
	selectedBlocks
	queries *cpu.Buf // int32 [B,Hkv,S*n]: the lists of a group, one after the other
	ends    *cpu.Buf // int32 [B,Hkv,numEnds]: the end of each list; the ends of a sequence begin at its first token
	// entries of ends in a row: one per block; with documents one per token, since each token may begin a document
	numEnds int
}

// bindInverseIndex adds to k a phase that inverts c.
func bindInverseIndex(k *cpu.Kernel, c selectedBlocks) inverseIndex {
	numEnds := c.numBlocks(c.RowKeys)
	if c.HasDocuments() {
		numEnds = c.RowTokens
	}
	x := inverseIndex{c, cpu.Work[int32](k, c.b*c.groups*c.RowTokens*c.n), cpu.Work[int32](k, c.b*c.groups*numEnds),
		numEnds}
	bindGroups(k, c.dims, 1, func(b, g, _ int, _ *cpu.Worker) {
		c.ForEach(b, func(seq spec.Sequence) {
			queries, ends := x.group(seq, g)
			spec.Invert(seq.Tokens, func(t int) []int32 { return c.startedBlocks(seq, g, t) }, queries, ends)
		})
	})
	return x
}

// group returns the lists of a sequence and a group, and their ends.
func (x inverseIndex) group(seq spec.Sequence, g int) (queries, ends []int32) {
	bg := seq.Row*x.groups + g
	return cpu.Slice[int32](x.queries)[(bg*x.RowTokens+seq.FirstToken)*x.n:][:seq.Tokens*x.n],
		cpu.Slice[int32](x.ends)[bg*x.numEnds+seq.FirstToken:][:x.numBlocks(seq.Keys)]
}

// queriesOf returns the queries that selected block j and see some of its keys.
func (x inverseIndex) queriesOf(seq spec.Sequence, g, j int) []int32 {
	queries, ends := x.group(seq, g)
	return spec.ListOf(queries, ends, j)
}

// selectedBackward is the gradient of attention over selected blocks. A piece of work writes the dq of adjoining
// queries, or the dk and dv of one block. inverse lists the queries of the block.
type selectedBackward[T cpu.Float] struct {
	backward[T]
	selected selectedBlocks
	inverse  inverseIndex
}

// runsAsSpan reports whether the kernels of spans compute the gradients of a sequence: all its queries select a good part
// of the keys that they may see, see spanTokens.
func (c selectedBlocks) runsAsSpan(seq spec.Sequence) bool {
	return seq.Keys <= shortSequence && seq.Keys <= 3*c.n*c.size
}

// anyRunsAsSpan and anyRunsByList report which kernels a batch needs: those of spans for sequences that run as a span,
// those that walk over the lists of selected blocks for all others. Documents have any length, so with documents both
// are true.
func (c selectedBlocks) anyRunsAsSpan() bool { return c.HasDocuments() || c.runsAsSpan(c.row()) }

func (c selectedBlocks) anyRunsByList() bool { return c.HasDocuments() || !c.runsAsSpan(c.row()) }

func (c selectedBlocks) row() spec.Sequence {
	return spec.Sequence{Tokens: c.RowTokens, Keys: c.RowKeys}
}

// bindSelectedGrad adds to k the phases of the gradient of bindSelected: in is q, k, v, idx, o or delta, lse, do, out
// is dq, dk, dv.
func bindSelectedGrad[T cpu.Float](k *cpu.Kernel, block int, takesDelta bool, in, out []spec.Arg) {
	in, a := splitDims(in, 4, spec.CompressionBlocks{})
	c := newSelectedBlocks(a, block, in[3])
	k.Check = c.Check
	scores := max(a.h*c.maxKeys(), a.tileRows()*c.size)
	if c.anyRunsAsSpan() {
		scores = max(scores, a.tileRows()*maxScoreRow)
	}
	b := newBackward[T](k, a, c, scores, max(c.size, keyTile), takesDelta, in, out)
	if c.anyRunsAsSpan() {
		newSpanBackward(k, b, maskedSpan{tokenSpan(a.RowKeys), &c}).bindParts(k)
	}
	if c.anyRunsByList() {
		f := &selectedBackward[T]{b, c, bindInverseIndex(k, c)}
		bindQueries(k, a, queriesPerPiece, func(seq spec.Sequence, g, first, end int, w *cpu.Worker) {
			if !c.runsAsSpan(seq) {
				f.queries(seq, g, first, end, w)
			}
		})
		k.Phase(a.b*a.groups*c.numBlocks(a.RowKeys), f.gradBlocks)
	}
}

// queries computes the dq of the queries [first,end) of a group.
func (f *selectedBackward[T]) queries(seq spec.Sequence, g, first, end int, w *cpu.Worker) {
	s, dp, ld, scale := f.scores.Local(w), f.dp.Local(w), f.selected.maxKeys(), SoftmaxScale[T](f.keyDim)
	keys, vals, k := f.keys.group(seq, g), f.vals.group(seq, g), cpu.Slice[T](f.k.Buf)
	stats := f.stats.rows(seq, g)
	for t := first; t < end; t++ {
		q := cpu.Slice[T](f.storedQ.Buf)[f.queryAt(seq, g, t, keys.c):]
		do := cpu.Slice[T](f.storedDO.Buf)[f.queryAt(seq, g, t, vals.c):]
		dq := cpu.Slice[T](f.gradQ.Buf)[f.queryAt(seq, g, t, f.keyDim):][:f.h*f.keyDim]
		clear(dq)
		n := 0
		for lo, hi := f.selected.nextRun(seq, g, t, 0); lo < hi; lo, hi = f.selected.nextRun(seq, g, t, hi) {
			dots(f.h, q, keys, lo, hi, s[n:], ld)
			dots(f.h, do, vals, lo, hi, dp[n:], ld)
			n += hi - lo
		}
		for j := range f.h {
			softmaxGrad(s[j*ld:][:n], dp[j*ld:][:n], 0, n, rowOf(stats, t*f.h+j), scale)
		}
		n = 0
		for lo, hi := f.selected.nextRun(seq, g, t, 0); lo < hi; lo, hi = f.selected.nextRun(seq, g, t, hi) {
			cpu.TileAdd(f.h, f.keyDim, hi-lo, dp[n:], ld, 1, k[f.keyAt(seq, g, lo, f.keyDim):], f.groups*f.keyDim, dq, f.keyDim)
			n += hi - lo
		}
	}
}

// gradBlocks computes the dk and dv of the blocks that begin in a piece of a row, from the queries that selected these
// blocks. The first pieces hold block 0 of every group: all queries select block 0, so it is the most work.
func (f *selectedBackward[T]) gradBlocks(piece int, w *cpu.Worker) {
	batchGroups := f.b * f.groups
	j, b, g := piece/batchGroups, piece%batchGroups/f.groups, piece%f.groups
	from, to := spec.PieceBounds(j, f.selected.size, f.RowKeys)
	f.KeyTiles(b, from, to, f.selected.size, func(seq spec.Sequence, lo, hi int) {
		if f.selected.runsAsSpan(seq) {
			return
		}
		queries := f.inverse.queriesOf(seq, g, lo/f.selected.size)
		f.keyGrad(seq, g, lo, hi, len(queries), func(i int) int { return int(queries[i]) },
			func(t int) (int, int) { return 0, seq.Start + t + 1 }, w)
	})
}
