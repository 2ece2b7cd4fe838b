package attention

import (
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// spanBackward is the gradient of attention under a span. It has two variants. In the first, a tile of rows writes its
// dq and a tile of keys writes its dk and dv.
//
// In the second, the queries of a sequence are cut into parts. A part writes the dq of its queries, and has its own dk
// and dv for all keys, which are summed at the end. The scores are then computed once instead of twice, and the work is
// parallel over queries instead of keys.
//
// A sequence with at least minQueriesPerKey times as many queries as keys (compressed attention) is cut into parts: as
// many as it has queries for each key, at most maxParts, so that the dk of all parts are no larger than q. A short
// sequence with as many keys as tokens is cut into shortParts.
type spanBackward[T cpu.Float] struct {
	backward[T]
	maskedSpan
	// -Inf and 0, which replace the numbers of keys that are not selected: a chunk; nil if blocks is nil
	minusInf, zeros []T
	finiteVals      finiteTiles // set only if blocks is not nil
	finiteKeys      finiteTiles
	rowsDQ          cpu.Region[T] // scratch of each worker
	partRows        int           // rows in partsK for the keys of all parts of one group
	// [B,Hkv,partRows,D] and [B,Hkv,partRows,Dv]: [parts,t,...] of each sequence, at row partsAt
	partsK, partsV *cpu.Buf
}

const (
	minQueriesPerKey = 4 // a sequence with fewer queries for each key is not cut
	maxParts         = 32

	shortSequence = 512 // the most tokens of a short sequence
	shortParts    = 4
)

// parts returns the number of parts that the queries of a sequence are cut into; 0 for the variant without parts.
func (f *spanBackward[T]) parts(seq spec.Sequence) int {
	switch {
	case f.blocks != nil && !f.blocks.runsAsSpan(seq): // selectedBackward computes this sequence
		return 0
	case f.blocks != nil || seq.Keys == seq.Tokens && seq.Tokens <= shortSequence:
		return shortParts
	}
	if n := min(seq.Tokens/max(1, seq.Keys), maxParts); n >= minQueriesPerKey {
		return n
	}
	return 0
}

// bindSpanGrad adds the phases of the gradient of bindSpan: in is q, k, v, o or delta, lse, do, out is dq, dk, dv.
func bindSpanGrad[T cpu.Float](k *cpu.Kernel, a dims, mask span, takesDelta bool, in, out []spec.Arg) {
	b := newBackward[T](k, a, mask, a.tileRows()*maxScoreRow, keyTile, takesDelta, in, out)
	f := newSpanBackward(k, b, maskedSpan{span: mask})
	if parts, _ := f.maxPartition(); a.HasDocuments() || parts == 0 { // some documents may have parts, others none
		bindQueries(k, a, a.tileQueries, func(seq spec.Sequence, g, t0, t1 int, w *cpu.Worker) {
			if f.parts(seq) == 0 {
				f.rowGrad(seq, g, t0, t1, nil, nil, w)
			}
		})
		bindKeys(k, a, func(seq spec.Sequence, g, from, to int, w *cpu.Worker) {
			if f.parts(seq) == 0 {
				first, end := f.span.queries(seq, from, to)
				keysOf := func(t int) (lo, hi int) { return f.span.keys(seq.Start + t) }
				f.keyGrad(seq, g, from, to, end-first, func(i int) int { return first + i }, keysOf, w)
			}
		})
	}
	f.bindParts(k)
	spec.BindClearUnused[T](k, a.Sequences, f.gradK, f.gradV)
}

// newSpanBackward adds to k the phases that prepare the gradient under mask, beside those of newBackward: they test the
// keys and, with blocks, the values. The caller adds the phases that compute the gradient.
func newSpanBackward[T cpu.Float](k *cpu.Kernel, b backward[T], mask maskedSpan) *spanBackward[T] {
	finiteKeys := bindFinite[T](k, b.k)
	f := &spanBackward[T]{
		backward: b, maskedSpan: mask,
		finiteKeys: finiteKeys,
		rowsDQ:     cpu.Scratch[T](k, b.tileRows()*b.keyDim),
	}
	if mask.blocks != nil {
		f.minusInf, f.zeros, f.finiteVals = minusInfs[T](), make([]T, chunkKeys), bindFinite[T](k, b.v)
	}
	return f
}

// maxPartition returns the largest number of parts of a sequence, 0 if none is cut, and the value of partRows.
func (f *spanBackward[T]) maxPartition() (parts, rows int) {
	switch {
	case !f.HasDocuments():
		parts = f.parts(spec.Sequence{Tokens: f.RowTokens, Keys: f.RowKeys})
	case f.RowKeys == f.RowTokens:
		parts = shortParts
	default:
		return maxParts, f.RowTokens // a document of s tokens and t keys has at most s/t parts
	}
	return parts, parts * f.RowKeys
}

// bindParts adds the phases for the sequences that are cut into parts.
func (f *spanBackward[T]) bindParts(k *cpu.Kernel) {
	parts, partRows := f.maxPartition()
	if parts == 0 {
		return
	}
	f.partRows = partRows
	rows := f.b * f.groups * partRows
	f.partsK, f.partsV = cpu.Work[T](k, rows*f.keyDim), cpu.Work[T](k, rows*f.valueDim)
	bindGroups(k, f.dims, parts, func(b, g, i int, w *cpu.Worker) {
		f.ForEach(b, func(seq spec.Sequence) {
			if n := f.parts(seq); i < n {
				f.queryPart(seq, g, i, n, w)
			}
		})
	})
	bindKeys(k, f.dims, func(seq spec.Sequence, g, from, to int, _ *cpu.Worker) {
		if n := f.parts(seq); n > 0 {
			f.sumOfParts(f.gradK, f.partsK, seq, g, from, to, n, f.keyDim)
			f.sumOfParts(f.gradV, f.partsV, seq, g, from, to, n, f.valueDim)
		}
	})
}

// partsAt returns the row of partsK at which the parts of a sequence and a group begin. A sequence has rows in
// proportion to its number of tokens.
func (f *spanBackward[T]) partsAt(seq spec.Sequence, g int) int {
	return (seq.Row*f.groups+g)*f.partRows + seq.FirstToken*(f.partRows/f.RowTokens)
}

// queryPart computes part i of n: the dq of every n-th tile of rows of a group, from tile i on, and what these rows add
// to dk and dv.
func (f *spanBackward[T]) queryPart(seq spec.Sequence, g, i, n int, w *cpu.Worker) {
	at := f.partsAt(seq, g) + i*seq.Keys
	dk := cpu.Slice[T](f.partsK)[at*f.keyDim:][:seq.Keys*f.keyDim]
	dv := cpu.Slice[T](f.partsV)[at*f.valueDim:][:seq.Keys*f.valueDim]
	clear(dk)
	clear(dv)
	for t0 := i * f.tileQueries; t0 < seq.Tokens; t0 += n * f.tileQueries {
		f.rowGrad(seq, g, t0, min(seq.Tokens, t0+f.tileQueries), dk, dv, w)
	}
}

// sumOfParts adds up the n parts of the keys [from,to), in order, and writes the sums to x [B,T,Hkv,c]. It overwrites
// the first part.
func (f *spanBackward[T]) sumOfParts(x spec.Arg, parts *cpu.Buf, seq spec.Sequence, g, from, to, n, c int) {
	rows, dst := cpu.Slice[T](parts)[(f.partsAt(seq, g)+from)*c:], cpu.Slice[T](x.Buf)
	sum := rows[:(to-from)*c]
	for i := 1; i < n; i++ {
		cpu.Add(sum, sum, rows[i*seq.Keys*c:][:len(sum)])
	}
	for i := range to - from {
		copy(dst[f.keyAt(seq, g, from+i, c):][:c], sum[i*c:])
	}
}

// rowGrad computes the dq of the queries [t0,t1) of a group. It adds the terms of these queries to dk [t,D] and dv
// [t,Dv], unless dk is nil.
func (f *spanBackward[T]) rowGrad(seq spec.Sequence, g, t0, t1 int, dk, dv []T, w *cpu.Worker) {
	rows := (t1 - t0) * f.h
	q, do, dotsQ, dotsDO := f.tileRowsOf(w)
	dq := f.rowsDQ.Local(w)[:rows*f.keyDim]
	s, dp, finiteRows, scale := f.scores.Local(w), f.dp.Local(w), f.finiteRows.Local(w), SoftmaxScale[T](f.keyDim)
	keys, vals, k := f.keys.group(seq, g), f.vals.group(seq, g), cpu.Slice[T](f.k.Buf)
	stats := f.stats.rows(seq, g)
	rowsFinite := f.stats.finite(stats, t0*f.h, t1*f.h)

	f.gather(q, do, dotsQ, dotsDO, 0, seq, g, t0, t1)
	clear(dq)
	first, end := f.span.keysOfTile(seq, t0, t1, f.tileQueries)
	for from, to := first, chunkEnd(first, end); from < end; from, to = to, chunkEnd(to, end) {
		ld := cpu.PaddedRow(to - from)
		dots(rows, dotsQ, keys, from, to, s, ld)
		dots(rows, dotsDO, vals, from, to, dp, ld)
		for r := range rows {
			lo, hi := f.span.keys(seq.Start + t0 + r/f.h)
			lo, hi = overlap(lo, hi, from, to)
			s, dp := s[r*ld:][:to-from], dp[r*ld:][:to-from]
			if f.blocks != nil {
				hide(f.blocks, seq, g, t0+r/f.h, from, s[:hi], f.minusInf)
			}
			softmaxGrad(s, dp, lo, hi, rowOf(stats, t0*f.h+r), scale)
			// a hidden key has p = 0, but 0 times NaN is NaN
			if f.blocks != nil && !(rowsFinite && f.finiteVals.areFinite(seq, from, to)) {
				hide(f.blocks, seq, g, t0+r/f.h, from, s[:hi], f.zeros)
				hide(f.blocks, seq, g, t0+r/f.h, from, dp[:hi], f.zeros)
			}
		}
		visible := func(r, i int) bool { return f.sees(seq, g, t0+r/f.h, from+i) }
		weightedRows[T]{
			m: rows, n: to - from, c: f.keyDim, w: dp, rs: ld, cs: 1, rows: k[f.keyAt(seq, g, from, f.keyDim):],
			ld: f.groups * f.keyDim, visible: visible,
		}.addTo(dq, f.finiteKeys.areFinite(seq, from, to), finiteRows)
		if dk != nil {
			visibleT := func(i, r int) bool { return visible(r, i) } // weights are transposed
			weightedRows[T]{
				m: to - from, n: rows, c: f.valueDim, w: s, rs: 1, cs: ld, rows: do, ld: f.valueDim, visible: visibleT,
			}.addTo(dv[from*f.valueDim:], rowsFinite, finiteRows)
			weightedRows[T]{
				m: to - from, n: rows, c: f.keyDim, w: dp, rs: 1, cs: ld, rows: q, ld: f.keyDim, visible: visibleT,
			}.addTo(dk[from*f.keyDim:], rowsFinite, finiteRows)
		}
	}
	scatterRows(f.dims, cpu.Slice[T](f.gradQ.Buf), dq, seq, g, t0, t1, f.keyDim)
}
