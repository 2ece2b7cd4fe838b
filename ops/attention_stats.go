package ops

import (
	"math"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// rowStats holds what the probabilities of each row and their gradients are recomputed from: p = exp((q·k - max)*scale -
// logSum) and dp - delta. It is [B,Hkv,S,h,3], in the order of the rows of a tile. Mostly max is 0 and logSum is lse. A large
// lse has no room for the log of the sum; then both come from the scores. A row that sees nothing has logSum = +Inf, so that
// p = 0.
type rowStats[T cpu.Float] struct {
	dims
	buf *cpu.Buf
}

// The numbers of a row.
const (
	rowMax    = iota // of the scores, before the scale
	rowLogSum        // log of the sum of exp((score - max)*scale)
	rowDelta         // do·o
	rowNumbers
)

// statQueries is the number of adjoining queries whose numbers are one piece of work.
const statQueries = 64

// rows returns the numbers of the rows [s*h,3] of group g of a sequence.
func (st rowStats[T]) rows(q sequence, g int) []T {
	n := st.h * rowNumbers
	return cpu.Slice[T](st.buf)[((q.b*st.hkv+g)*st.s+q.first)*n:][:q.s*n]
}

// bindRowStats adds to k the phase that computes max and logSum from lse [B,Hq,S], q and the packed keys.
func bindRowStats[T cpu.Float](k *cpu.Kernel, a dims, m mask, q Arg, keys packed[T], lse Arg) rowStats[T] {
	st := rowStats[T]{a, cpu.Work[T](k, a.b*a.s*a.hq*rowNumbers)}
	scores, top, sum := cpu.Scratch[T](k, a.h*chunkKeys), cpu.Scratch[T](k, a.h), cpu.Scratch[T](k, a.h)
	bindQueries(k, a, statQueries, func(seq sequence, g, first, end int, w *cpu.Worker) {
		all, lses := st.rows(seq, g), cpu.Slice[T](lse.Buf)[a.stat(seq, g, 0):]
		for t := first; t < end; t++ {
			rows, recompute := all[t*a.h*rowNumbers:][:a.h*rowNumbers], false
			for j := range a.h {
				l := lses[j*a.s+t]
				if math.IsInf(float64(l), -1) {
					l = T(math.Inf(1))
				} else if isLarge(l) {
					recompute = true
				}
				rows[j*rowNumbers+rowMax], rows[j*rowNumbers+rowLogSum] = 0, l
			}
			if recompute {
				state := softmax[T]{top.Local(w), sum.Local(w), softmaxScale[T](a.d)}
				state.look(a, m, cpu.Slice[T](q.Buf), keys.of(seq, g), seq, g, t, scores.Local(w))
				for j := range a.h {
					if isLarge(lses[j*a.s+t]) && state.sum[j] > 0 {
						rows[j*rowNumbers+rowMax], rows[j*rowNumbers+rowLogSum] = state.max[j], T(math.Log(float64(state.sum[j])))
					}
				}
			}
		}
	})
	return st
}

// look lets the h rows of query t of group g see all their keys.
func (s softmax[T]) look(a dims, m mask, q []T, keys packedKeys[T], seq sequence, g, t int, scores []T) {
	s.start()
	for lo, hi := m.run(seq, g, t, 0); lo < hi; lo, hi = m.run(seq, g, t, hi) {
		for from, to := lo, chunkEnd(lo, hi); from < hi; from, to = to, chunkEnd(to, hi) {
			dots(a.h, q[a.row(seq, t, g, a.d):], keys, from, to, scores, chunkKeys)
			for j := range a.h {
				s.add(j, scores[j*chunkKeys:][:to-from], 0, to-from, nil)
			}
		}
	}
}

// bindDelta adds to k the phase that sets delta: from o and do [B,S,Hq,Dv], or to what o holds, if that is delta [B,Hq,S].
func (st rowStats[T]) bindDelta(k *cpu.Kernel, o, do Arg) {
	given := o.Shape.Dims() == 3
	bindQueries(k, st.dims, statQueries, func(q sequence, g, first, end int, _ *cpu.Worker) {
		rows, O, DO := st.rows(q, g), cpu.Slice[T](o.Buf), cpu.Slice[T](do.Buf)
		for r := first * st.h; r < end*st.h; r++ {
			if given {
				rows[r*rowNumbers+rowDelta] = O[st.stat(q, g, r/st.h)+r%st.h*st.s]
				continue
			}
			at := st.row(q, r/st.h, g, st.dv) + r%st.h*st.dv
			rows[r*rowNumbers+rowDelta] = cpu.Dot(O[at:][:st.dv], DO[at:][:st.dv])
		}
	})
}

// finite reports whether q and do are finite in the given rows of a group: if q is not, neither is lse, and if do is not,
// neither is delta.
func (st rowStats[T]) finite(rows []T, first, end int) bool {
	return finite(rows[first*rowNumbers : end*rowNumbers])
}
