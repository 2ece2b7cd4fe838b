package attention

import (
	"cmp"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// SelectBlocks is the Spec of SelectBlocks: q, kc, lse and optionally a table of documents or a start of the queries ->
// idx.
type SelectBlocks struct {
	Params spec.Params
}

func (SelectBlocks) Name() string       { return "select blocks" }
func (SelectBlocks) InputNames() string { return "q kc lse documents" }

func (op SelectBlocks) MaxTokens(in []spec.Operand) int { return maxTokens(op.Blocks(), in) }

// scorer returns the attention op whose probabilities score the blocks.
func (op SelectBlocks) scorer() Compressed {
	return Compressed{op.Params.BlockLen, op.Params.Stride}
}

func (op SelectBlocks) Blocks() spec.CompressionBlocks { return op.scorer().Blocks() }

func (op SelectBlocks) FLOPs(in []spec.Operand) float64 {
	return attentionFLOPs(op.scorer(), []spec.Operand{in[0], in[1], in[1]}, 2, 0)
}

func (op SelectBlocks) Infer(in []spec.Operand) ([]spec.Operand, error) {
	in, table := spec.SplitTable(in, 3)
	if err := cmp.Or(spec.CheckParams(op.Params), spec.WantInputs(in, spec.FloatInput("q", 4), spec.FloatInput("kc", 4),
		spec.FloatInput("lse", 3))); err != nil {
		return nil, err
	}
	scored, err := op.scorer().Infer(append([]spec.Operand{in[0], in[1], in[1]}, table...))
	if err != nil {
		return nil, err
	}
	q, kc := in[0].Shape, in[1].Shape
	return []spec.Operand{{Dtype: tensor.Int32, Shape: tensor.Shape{q[0], q[1], kc[2], op.Params.TopN}}},
		cmp.Or(spec.WantShape("lse", in[2].Shape, scored[1].Shape...), spec.CheckTable(table, q[0], q[1]))
}

func (op SelectBlocks) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.ByType(in[0].Dtype, bindSelectBlocks[float32], bindSelectBlocks[float64])(k, op.Params, in, out)
}

// blockSelector selects blocks, for a tile of queries at a time.
type blockSelector[T cpu.Float] struct {
	dims
	TopBlocks[T]
	mask   span
	q, idx spec.Arg
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

func bindSelectBlocks[T cpu.Float](k *cpu.Kernel, p spec.Params, in, out []spec.Arg) {
	in, table := spec.SplitTable(in, 3)
	a := dimsOf(in[0].Shape, in[1].Shape, in[1].Shape)
	a.Sequences = spec.SequencesOf(table, a.RowTokens, a.RowKeys, spec.CompressionBlocks{BlockLen: p.BlockLen,
		Stride: p.Stride})
	a.BindCheckStart(k)
	lastBlock := (a.MaxTokens() - 1) / p.SelectBlock
	keys := bindTranspose[T](k, a, in[1])
	f := &blockSelector[T]{
		dims: a, TopBlocks: TopBlocks[T]{Params: p}, mask: span{p.BlockLen, p.Stride, a.MaxTokens()},
		q: in[0], idx: out[0],
		keys:   keys,
		rowsQ:  cpu.Scratch[T](k, a.tileRows()*a.keyDim),
		scores: cpu.Scratch[T](k, a.tileRows()*maxScoreRow),
		probs:  cpu.Scratch[T](k, a.tileQueries*a.RowKeys),
		folded: cpu.Scratch[T](k, lastBlock+1),
		best:   cpu.Scratch[T](k, p.TopN),
		blocks: cpu.Scratch[int32](k, p.TopN),
	}
	f.stats = bindRowStats(k, a, f.mask, in[0], f.keys, in[2])
	if f.SelectsByScore(lastBlock) && a.MaxTokens() >= p.BlockLen {
		f.Weights = FoldWeights[T](p)
	}
	bindQueries(k, a, a.tileQueries, f.tile)
}

// FoldWeights returns the weights of the compression blocks j*l'/d - l/d + 1, ... in the score of selection block j:
// the number of tokens that they share with it, divided by d. For l, d, l' = 32, 16, 64 the weights are 1, 2, 2, 2, 1.
func FoldWeights[T cpu.Float](p spec.Params) []T {
	l, lp := p.BlockLen/p.Stride, p.SelectBlock/p.Stride
	w := make([]T, l+lp-1)
	for i := range w {
		w[i] = T(min(i+1, len(w)-i, l, lp))
	}
	return w
}

// tile selects the blocks of the queries [t0,t1) of a group.
func (f *blockSelector[T]) tile(seq spec.Sequence, g, t0, t1 int, w *cpu.Worker) {
	probs := f.probs.Local(w)
	if f.SelectsByScore((seq.Start + t1 - 1) / f.SelectBlock) {
		f.sumProbs(probs, seq, g, t0, t1, w)
	}
	best, blocks, idx := f.best.Local(w), f.blocks.Local(w), cpu.Slice[int32](f.idx.Buf)
	for t := t0; t < t1; t++ {
		row := idx[((seq.Row*f.RowTokens+seq.FirstToken+t)*f.groups+g)*f.TopN:][:f.TopN]
		_, visible := f.mask.keys(seq.Start + t)
		f.Choose(row, (seq.Start+t)/f.SelectBlock, probs[(t-t0)*f.RowKeys:][:visible], f.folded.Local(w), best, blocks)
	}
}

// sumProbs sets probs[(t-t0)*Nc + i] to the probability of block i at query t, summed over the heads of the group, for
// the blocks that t sees.
func (f *blockSelector[T]) sumProbs(probs []T, seq spec.Sequence, g, t0, t1 int, w *cpu.Worker) {
	rows, scale := (t1-t0)*f.h, SoftmaxScale[T](f.keyDim)
	q, s, keys := f.rowsQ.Local(w), f.scores.Local(w), f.keys.group(seq, g)
	stats := f.stats.rows(seq, g)
	gatherRows(f.dims, q, cpu.Slice[T](f.q.Buf), seq, g, t0, t1, f.keyDim)
	_, hi := f.mask.keys(seq.Start + t1 - 1)
	for from, to := 0, chunkEnd(0, hi); from < hi; from, to = to, chunkEnd(to, hi) {
		ld := cpu.PaddedRow(to - from)
		dots(rows, q, keys, from, to, s, ld)
		for r := range rows {
			t, j := t0+r/f.h, r%f.h
			_, end := f.mask.keys(seq.Start + t)
			_, end = overlap(0, end, from, to)
			if end == 0 {
				continue
			}
			x, row := s[r*ld:][:end], rowOf(stats, t0*f.h+r)
			ExpScores(x, row[rowMax], scale, row[rowLogSum])
			if sum := probs[(t-t0)*f.RowKeys+from:][:end]; j == 0 {
				copy(sum, x)
			} else {
				cpu.Add(sum, sum, x)
			}
		}
	}
}

// TopBlocks selects the selection blocks of one query.
type TopBlocks[T cpu.Float] struct {
	spec.Params
	Weights []T // see FoldWeights; not needed if all blocks are selected
}

// Choose sets idx to the blocks of a query. own is the query's own block, probs the summed probabilities of the
// compression blocks that the query sees. scores has room for all selection blocks, best and blocks for n.
func (f *TopBlocks[T]) Choose(idx []int32, own int, probs, scores, best []T, blocks []int32) {
	if !f.SelectsByScore(own) { // all blocks
		for j := range idx {
			idx[j] = int32(j)
			if j > own {
				idx[j] = -1
			}
		}
		return
	}
	scores = scores[:spec.FreeBlocksOf(own)]
	f.fold(scores, probs)
	// best is sorted by falling score. Equal scores are in the order of their blocks, since i ascends.
	n, free := 0, len(idx)-spec.ForcedBlocks
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

// fold sets scores[j-1] to the score of selection block j, for j = 1, 2, ...: the weighted sum of the probabilities of
// the compression blocks that share tokens with block j. probs holds the probabilities of the blocks that the query
// sees. The terms are added from both ends inwards. So equal probabilities give equal bits to two blocks of equal
// weights, of which one lacks the first terms, before token 0, and the other one the last, which the query does not
// see.
func (f *TopBlocks[T]) fold(scores, probs []T) {
	for j := range scores {
		var sum T
		first := ((j+1)*f.SelectBlock-f.BlockLen)/f.Stride + 1
		term := func(i int) T { return T(f.Weights[i-first] * probs[i]) } // T: no fused multiply-add
		lo, hi := max(first, 0), min(first+len(f.Weights), len(probs))-1
		for ; lo < hi; lo, hi = lo+1, hi-1 {
			sum += term(lo) + term(hi)
		}
		if lo == hi {
			sum += term(lo)
		}
		scores[j] = sum
	}
}
