package attention

import (
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// spanForward is attention under a maskedSpan: each tile of rows walks over the keys that any of its rows sees.
type spanForward[T cpu.Float] struct {
	dims
	maskedSpan
	minusInf     []T      // -Inf: the scores of a chunk of keys that are not selected; nil if blocks is nil
	q, v, o, lse spec.Arg // q may be bf16
	keys         transposed[T]
	pairs        valuePairs
	finiteVals   finiteTiles

	// Scratch of each worker. The rows are those of a tile.
	rowsQ      cpu.Region[T] // [rows,D]
	rowsO      cpu.Region[T] // [rows,Dv]
	scores     cpu.Region[T] // [rows,keys of a chunk]
	max, sum   cpu.Region[T] // [rows]: the softmax state
	finiteRows cpu.Region[T] // scratch of weightedRows.addTo
}

// bindSpan adds to k the phases of attention under mask: in is q, k, v, out is o, lse.
func bindSpan[T cpu.Float](k *cpu.Kernel, a dims, mask span, in, out []spec.Arg) {
	f := newSpanForward[T](k, a, maskedSpan{span: mask}, in, out)
	bindQueries(k, a, a.tileQueries, f.tile)
}

// newSpanForward adds to k the phases that prepare attention under mask: they transpose the keys and test the values.
// The caller adds the phase that calls tile.
func newSpanForward[T cpu.Float](k *cpu.Kernel, a dims, mask maskedSpan, in, out []spec.Arg) *spanForward[T] {
	keys, pairs, v := bindTranspose[T](k, a, in[1]), bindValuePairs(k, a, in[2]), in[2]
	if v.Dtype == spec.BFloat16 { // for tiles whose values are not finite
		v = spec.InType(k, tensor.Float32, v)[0]
	}
	finiteVals := bindFinite[T](k, v)
	f := &spanForward[T]{
		dims: a, maskedSpan: mask, q: in[0], v: v, o: out[0], lse: out[1],
		keys:       keys,
		pairs:      pairs,
		finiteVals: finiteVals,
		rowsQ:      cpu.Scratch[T](k, a.tileRows()*a.keyDim),
		rowsO:      cpu.Scratch[T](k, a.tileRows()*a.valueDim),
		scores:     cpu.Scratch[T](k, a.tileRows()*maxScoreRow),
		max:        cpu.Scratch[T](k, a.tileRows()),
		sum:        cpu.Scratch[T](k, a.tileRows()),
		finiteRows: cpu.Scratch[T](k, chunkKeys*a.valueDim),
	}
	if mask.blocks != nil {
		f.minusInf = minusInfs[T]()
	}
	return f
}

// tile computes o and lse for the queries [t0,t1) of a group.
func (f *spanForward[T]) tile(seq spec.Sequence, g, t0, t1 int, w *cpu.Worker) {
	rows := (t1 - t0) * f.h
	q, o, s := f.rowsQ.Local(w), f.rowsO.Local(w)[:rows*f.valueDim], f.scores.Local(w)
	state := OnlineSoftmax[T]{f.max.Local(w)[:rows], f.sum.Local(w)[:rows], SoftmaxScale[T](f.keyDim)}
	keys, v := f.keys.group(seq, g), cpu.Slice[T](f.v.Buf)

	gatherRows(f.dims, q, cpu.Slice[T](f.q.Buf), seq, g, t0, t1, keys.c)
	state.Start()
	clear(o)
	first, end := f.span.keysOfTile(seq, t0, t1, f.tileQueries)
	for from, to := first, chunkEnd(first, end); from < end; from, to = to, chunkEnd(to, end) {
		ld := cpu.PaddedRow(to - from)
		dots(rows, q, keys, from, to, s, ld)
		for r := range rows {
			lo, hi := f.span.keys(seq.Start + t0 + r/f.h)
			lo, hi = overlap(lo, hi, from, to)
			if f.blocks != nil {
				hide(f.blocks, seq, g, t0+r/f.h, from, s[r*ld:][:hi], f.minusInf)
			}
			state.Add(r, s[r*ld:][:to-from], lo, hi, o[r*f.valueDim:][:f.valueDim])
		}
		visible := func(r, i int) bool { return f.sees(seq, g, t0+r/f.h, from+i) }
		weighted := weightedRows[T]{
			m: rows, n: to - from, c: f.valueDim, w: s, rs: ld, cs: 1, rows: v[f.keyAt(seq, g, from, f.valueDim):],
			ld: f.groups * f.valueDim, visible: visible,
		}
		if scratch := f.finiteRows.Local(w); f.pairs.buf == nil {
			weighted.addTo(o, f.finiteVals.areFinite(seq, from, to), scratch)
		} else {
			even := min(seq.Keys, to+to%2) // the end of the last pair
			weighted.addPairs(o, f.pairs.group(seq, g)[from/2*f.valueDim:], even-from,
				f.finiteVals.areFinite(seq, from, even), float32s(scratch))
		}
	}

	lse := cpu.Slice[T](f.lse.Buf)[f.statAt(seq, g, 0):]
	for r := range rows {
		lse[r%f.h*f.RowTokens+t0+r/f.h] = state.Finish(r, o[r*f.valueDim:][:f.valueDim])
	}
	scatterRows(f.dims, cpu.Slice[T](f.o.Buf), o, seq, g, t0, t1, f.valueDim)
}
