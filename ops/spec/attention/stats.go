package attention

import (
	"math"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
)

// rowStats holds three numbers of each row, max, logSum and delta: [B,Hkv,S,h,3], in the order of the rows of a tile.
// The gradient recomputes from them the probabilities p = exp((q·k - max)*scale - logSum) and the differences dp -
// delta.
//
// Usually max is 0 and logSum is lse. A large lse is too coarse to contain the log of the sum; max and logSum are then
// computed from the scores. A row that sees no key has logSum = +Inf, so that p = 0.
type rowStats[T cpu.Float] struct {
	dims
	buf *cpu.Buf
}

// The numbers of a row.
const (
	rowMax    = iota // 0 or the largest score, unscaled
	rowLogSum        // log of the sum of exp((score - max)*scale)
	rowDelta         // do·o
	rowNumbers
)

// rowOf returns the numbers of row r of a group: of head j at query t, if r = t*h + j.
func rowOf[T cpu.Float](rows []T, r int) []T { return rows[r*rowNumbers:][:rowNumbers] }

// statQueries is the number of adjoining queries in one piece of work.
const statQueries = 64

// rows returns the numbers of the rows [s*h,3] of group g of a sequence.
func (st rowStats[T]) rows(seq spec.Sequence, g int) []T {
	n := st.h * rowNumbers
	return cpu.Slice[T](st.buf)[((seq.Row*st.groups+g)*st.RowTokens+seq.FirstToken)*n:][:seq.Tokens*n]
}

// bindRowStats adds to k a phase that computes max and logSum from lse [B,Hq,S], q and the transposed keys.
func bindRowStats[T cpu.Float](k *cpu.Kernel, a dims, m mask, q spec.Arg, keys transposed[T],
	lse spec.Arg) rowStats[T] {
	st := rowStats[T]{a, cpu.Work[T](k, a.b*a.RowTokens*a.queryHeads*rowNumbers)}
	scores, top, sum := cpu.Scratch[T](k, a.h*chunkKeys), cpu.Scratch[T](k, a.h), cpu.Scratch[T](k, a.h)
	bindQueries(k, a, statQueries, func(seq spec.Sequence, g, first, end int, w *cpu.Worker) {
		all, lses := st.rows(seq, g), cpu.Slice[T](lse.Buf)[a.statAt(seq, g, 0):]
		for t := first; t < end; t++ {
			recompute := false
			for j := range a.h {
				l := lses[j*a.RowTokens+t]
				if math.IsInf(float64(l), -1) {
					l = T(math.Inf(1))
				} else if norm.IsLarge(l) {
					recompute = true
				}
				row := rowOf(all, t*a.h+j)
				row[rowMax], row[rowLogSum] = 0, l
			}
			if recompute {
				state := OnlineSoftmax[T]{top.Local(w), sum.Local(w), SoftmaxScale[T](a.keyDim)}
				state.scan(a, m, cpu.Slice[T](q.Buf), keys.group(seq, g), seq, g, t, scores.Local(w))
				for j := range a.h {
					if norm.IsLarge(lses[j*a.RowTokens+t]) && state.Sum[j] > 0 {
						row := rowOf(all, t*a.h+j)
						row[rowMax], row[rowLogSum] = state.Max[j], T(math.Log(float64(state.Sum[j])))
					}
				}
			}
		}
	})
	return st
}

// scan resets the state and adds the scores of all keys that the h rows of query t of group g see.
func (s OnlineSoftmax[T]) scan(a dims, m mask, q []T, keys transposedKeys[T], seq spec.Sequence, g, t int, scores []T) {
	s.Start()
	for lo, hi := m.nextRun(seq, g, t, 0); lo < hi; lo, hi = m.nextRun(seq, g, t, hi) {
		for from, to := lo, chunkEnd(lo, hi); from < hi; from, to = to, chunkEnd(to, hi) {
			dots(a.h, q[a.queryAt(seq, g, t, keys.c):], keys, from, to, scores, chunkKeys)
			for j := range a.h {
				s.Add(j, scores[j*chunkKeys:][:to-from], 0, to-from, nil)
			}
		}
	}
}

// bindDelta adds to k a phase that computes delta from o and do [B,S,Hq,Dv].
func (st rowStats[T]) bindDelta(k *cpu.Kernel, o, do spec.Arg) {
	bindQueries(k, st.dims, statQueries, func(seq spec.Sequence, g, first, end int, _ *cpu.Worker) {
		rows, values, grads := st.rows(seq, g), cpu.Slice[T](o.Buf), cpu.Slice[T](do.Buf)
		for r := first * st.h; r < end*st.h; r++ {
			at := st.queryAt(seq, g, r/st.h, st.valueDim) + r%st.h*st.valueDim
			rowOf(rows, r)[rowDelta] = cpu.Dot(values[at:][:st.valueDim], grads[at:][:st.valueDim])
		}
	})
}

// bindCopyDelta adds to k a phase that copies delta [B,Hq,S].
func (st rowStats[T]) bindCopyDelta(k *cpu.Kernel, delta spec.Arg) {
	bindQueries(k, st.dims, statQueries, func(seq spec.Sequence, g, first, end int, _ *cpu.Worker) {
		rows, deltas := st.rows(seq, g), cpu.Slice[T](delta.Buf)
		for r := first * st.h; r < end*st.h; r++ {
			rowOf(rows, r)[rowDelta] = deltas[st.statAt(seq, g, r/st.h)+r%st.h*st.RowTokens]
		}
	})
}

// finite reports whether q and do are finite in the rows [first,end) of a group. It needs only their numbers: if q is
// not finite, neither is lse, and if do is not finite, neither is delta.
func (st rowStats[T]) finite(rows []T, first, end int) bool {
	return finite(rows[first*rowNumbers : end*rowNumbers])
}
