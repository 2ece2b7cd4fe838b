package ops

import (
	"cmp"
	"slices"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// SelectBlocks returns the selection blocks that each query of each group attends to: q [B,S,Hq,D], kc [B,Nc,Hkv,D] and
// the lse [B,Hq,S] of the compressed attention over kc -> int32 [B,S,Hkv,n], ascending, padded with -1. Blocks count from the
// first block of the query's document, as in SelectedAttention.
//
// Three of the n blocks are forced: block 0, the query's own block and the block before it. The other n-3 are the blocks with the
// best scores among the remaining earlier blocks. Of equal scores the lower index wins. The score of a block is a weighted sum of
// the probabilities that the compressed attention gives to the compression blocks, also summed over the heads of the group. The
// weight of a compression block is the number of tokens that it shares with the block, divided by d (arXiv 2502.11089, equations
// 8 to 12). The probabilities are recomputed from lse, a tile of queries at a time. No gradient flows through the selection.
//
// It is an error if p is not valid, if kc has another number of rows than the compressed keys of S tokens, or if Hkv
// does not divide Hq.
func SelectBlocks(q, kc, lse *gorgonia.Node, p Params, opts ...Option) (*gorgonia.Node, error) {
	return applyWithDocuments(SelectBlocksOp{p}, opts, q, kc, lse)
}

// SelectBlocksOp is the Spec of SelectBlocks: q, kc, lse and optionally a table of documents -> idx.
type SelectBlocksOp struct {
	Params Params
}

func (SelectBlocksOp) Name() string { return "select blocks" }

// scorer returns the attention op whose probabilities score the blocks.
func (op SelectBlocksOp) scorer() CompressedAttentionOp {
	return CompressedAttentionOp{op.Params.BlockLen, op.Params.Stride}
}

func (op SelectBlocksOp) blocks() compressionBlocks { return op.scorer().blocks() }

func (op SelectBlocksOp) flops(in []Operand) float64 {
	return attentionFLOPs(op.scorer(), []Operand{in[0], in[1], in[1]}, 2, 0)
}

func (op SelectBlocksOp) Infer(in []Operand) ([]Operand, error) {
	in, table := splitTable(in, 3)
	if err := cmp.Or(op.Params.check(), wantInputs(in, floatInput("q", 4), floatInput("kc", 4), floatInput("lse", 3))); err != nil {
		return nil, err
	}
	scored, err := op.scorer().Infer([]Operand{in[0], in[1], in[1]})
	if err != nil {
		return nil, err
	}
	q, kc := in[0].Shape, in[1].Shape
	return []Operand{{tensor.Int32, tensor.Shape{q[0], q[1], kc[2], op.Params.TopN}}},
		cmp.Or(wantShape("lse", in[2].Shape, scored[1].Shape...), checkTable(table, q[0], q[1]))
}

func (op SelectBlocksOp) Bind(k *cpu.Kernel, in, out []Arg) {
	byType(in[0].Dtype, bindSelect[float32], bindSelect[float64])(k, op.Params, in, out)
}

// selector selects blocks, for a tile of queries at a time.
type selector[T cpu.Float] struct {
	dims
	topBlocks[T]
	mask   span
	q, idx Arg
	keys   transposed[T]
	stats  rowStats[T]

	// Scratch of each worker.
	rowsQ  cpu.Region[T]     // [rows of a tile,D]
	scores cpu.Region[T]     // [rows of a tile,keys of a chunk]
	probs  cpu.Region[T]     // [queries of a tile,Nc]: probabilities, summed over the heads
	folded cpu.Region[T]     // [selection blocks]: their scores at one query
	best   cpu.Region[T]     // [n]: the best of these scores
	blocks cpu.Region[int32] // [n]: the blocks with the best scores
}

func bindSelect[T cpu.Float](k *cpu.Kernel, p Params, in, out []Arg) {
	in, table := splitTable(in, 3)
	a := dimsOf(in[0].Shape, in[1].Shape, in[1].Shape)
	a.sequences = sequencesOf(table, a.rowTokens, a.rowKeys, compressionBlocks{p.BlockLen, p.Stride})
	keys := bindTranspose[T](k, a, in[1])
	f := &selector[T]{
		dims: a, topBlocks: topBlocks[T]{Params: p}, mask: span{p.BlockLen, p.Stride, a.rowTokens},
		q: in[0], idx: out[0],
		keys:   keys,
		rowsQ:  cpu.Scratch[T](k, a.tileRows()*a.keyDim),
		scores: cpu.Scratch[T](k, a.tileRows()*maxScoreRow),
		probs:  cpu.Scratch[T](k, a.tileQueries*a.rowKeys),
		folded: cpu.Scratch[T](k, (a.rowTokens-1)/p.SelectBlock+1),
		best:   cpu.Scratch[T](k, p.TopN),
		blocks: cpu.Scratch[int32](k, p.TopN),
	}
	f.stats = bindRowStats(k, a, f.mask, in[0], f.keys, in[2])
	if f.selectsByScore((a.rowTokens-1)/p.SelectBlock) && a.rowTokens >= p.BlockLen {
		f.weights = foldWeights[T](p)
	}
	bindQueries(k, a, a.tileQueries, f.tile)
}

// foldWeights returns the weights of the compression blocks j*l'/d - l/d + 1, ... in the score of selection block j: the number of
// tokens that they share with it, divided by d. For l, d, l' = 32, 16, 64 the weights are 1, 2, 2, 2, 1.
func foldWeights[T cpu.Float](p Params) []T {
	l, lp := p.BlockLen/p.Stride, p.SelectBlock/p.Stride
	w := make([]T, l+lp-1)
	for i := range w {
		w[i] = T(min(i+1, len(w)-i, l, lp))
	}
	return w
}

// tile selects the blocks of the queries [t0,t1) of a group.
func (f *selector[T]) tile(seq sequence, g, t0, t1 int, w *cpu.Worker) {
	probs := f.probs.Local(w)
	if f.selectsByScore((t1 - 1) / f.SelectBlock) {
		f.sumProbs(probs, seq, g, t0, t1, w)
	}
	best, blocks, idx := f.best.Local(w), f.blocks.Local(w), cpu.Slice[int32](f.idx.Buf)
	for t := t0; t < t1; t++ {
		row := idx[((seq.row*f.rowTokens+seq.firstToken+t)*f.groups+g)*f.TopN:][:f.TopN]
		_, visible := f.mask.keys(t)
		f.choose(row, t/f.SelectBlock, probs[(t-t0)*f.rowKeys:][:visible], f.folded.Local(w), best, blocks)
	}
}

// sumProbs sets probs[(t-t0)*Nc + i] to the probability of block i at query t, summed over the heads of the group, for
// the blocks that t sees.
func (f *selector[T]) sumProbs(probs []T, seq sequence, g, t0, t1 int, w *cpu.Worker) {
	rows, scale := (t1-t0)*f.h, softmaxScale[T](f.keyDim)
	q, s, keys := f.rowsQ.Local(w), f.scores.Local(w), f.keys.group(seq, g)
	stats := f.stats.rows(seq, g)
	gatherRows(f.dims, q, cpu.Slice[T](f.q.Buf), seq, g, t0, t1, f.keyDim)
	_, hi := f.mask.keys(t1 - 1)
	for from, to := 0, chunkEnd(0, hi); from < hi; from, to = to, chunkEnd(to, hi) {
		ld := cpu.PaddedRow(to - from)
		dots(rows, q, keys, from, to, s, ld)
		for r := range rows {
			t, j := t0+r/f.h, r%f.h
			_, end := f.mask.keys(t)
			_, end = overlap(0, end, from, to)
			if end == 0 {
				continue
			}
			x, row := s[r*ld:][:end], rowOf(stats, t0*f.h+r)
			expScores(x, row[rowMax], scale, row[rowLogSum])
			if sum := probs[(t-t0)*f.rowKeys+from:][:end]; j == 0 {
				copy(sum, x)
			} else {
				cpu.Add(sum, sum, x)
			}
		}
	}
}

// topBlocks selects the selection blocks of one query.
type topBlocks[T cpu.Float] struct {
	Params
	weights []T // see foldWeights; not needed if all blocks are selected
}

// choose sets idx to the blocks of a query. own is the query's own block, probs the summed probabilities of the compression blocks
// that the query sees. scores has room for all selection blocks, best and blocks for n.
func (f *topBlocks[T]) choose(idx []int32, own int, probs, scores, best []T, blocks []int32) {
	if !f.selectsByScore(own) { // all blocks
		for j := range idx {
			idx[j] = int32(j)
			if j > own {
				idx[j] = -1
			}
		}
		return
	}
	scores = scores[:freeBlocksOf(own)]
	f.fold(scores, probs)
	// best is sorted by falling score. Equal scores are in the order of their blocks, since i ascends.
	n, free := 0, len(idx)-ForcedBlocks
	for i, score := range scores {
		if n == free {
			if n == 0 || !(score > best[n-1]) {
				continue
			}
			n--
		}
		at := n
		for ; at > 0 && score > best[at-1]; at-- {
			best[at], blocks[at] = best[at-1], blocks[at-1]
		}
		best[at], blocks[at] = score, int32(i+1)
		n++
	}
	idx[0], idx[n+1], idx[n+2] = 0, int32(own-1), int32(own)
	copy(idx[1:], blocks[:n])
	slices.Sort(idx[1 : n+1])
}

// fold sets scores[j-1] to the score of selection block j, for j = 1, 2, ...: the weighted sum of the probabilities of the
// compression blocks that share tokens with block j. probs holds the probabilities of the blocks that the query sees. The terms are added
// from both ends inwards. So equal probabilities give equal bits to two blocks of equal weights, of which one lacks the first terms,
// before token 0, and the other one the last, which the query does not see.
func (f *topBlocks[T]) fold(scores, probs []T) {
	for j := range scores {
		var sum T
		first := ((j+1)*f.SelectBlock-f.BlockLen)/f.Stride + 1
		term := func(i int) T { return T(f.weights[i-first] * probs[i]) } // T: no fused multiply-add
		lo, hi := max(first, 0), min(first+len(f.weights), len(probs))-1
		for ; lo < hi; lo, hi = lo+1, hi-1 {
			sum += term(lo) + term(hi)
		}
		if lo == hi {
			sum += term(lo)
		}
		scores[j] = sum
	}
}
