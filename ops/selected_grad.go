package ops

import (
	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// SelectedAttentionGradOp is the Spec of the gradient of SelectedAttention: q, k, v, idx, o, lse, do -> dq, dk, dv.
type SelectedAttentionGradOp struct {
	SelectBlock int // l', as in SelectedAttentionOp
}

func (SelectedAttentionGradOp) Name() string { return "gradient of selected attention" }

func (op SelectedAttentionGradOp) flops(in []Operand) float64 {
	return attentionFLOPs(in[0], in[2], 6, 4, selectedPairs(in[0].Shape[1], op.SelectBlock, in[3].Shape[3]))
}

func (op SelectedAttentionGradOp) Infer(in []Operand) ([]Operand, error) {
	return inferAttentionGrad(SelectedAttentionOp(op), in)
}

func (op SelectedAttentionGradOp) Bind(k *cpu.Kernel, in, out []Arg) error {
	byType(in[0].Dtype, bindSelectedGrad[float32], bindSelectedGrad[float64])(k, op.SelectBlock, in, out)
	return nil
}

// choosers lists for each block of each group the queries that chose it and see some of it, ascending.
type choosers struct {
	choice
	queries *cpu.Buf // int32 [B,Hkv,S*n]: the lists of a group one after the other
	ends    *cpu.Buf // int32 [B,Hkv,blocks]: where they end
}

// bindChoosers adds to k the phase that inverts c.
func bindChoosers(k *cpu.Kernel, c choice) choosers {
	x := choosers{c, cpu.Work[int32](k, c.b*c.hkv*c.s*c.n), cpu.Work[int32](k, c.b*c.hkv*c.blocks())}
	k.Phase(c.b*c.hkv, func(bg int, _ *cpu.Worker) {
		b, g := bg/c.hkv, bg%c.hkv
		queries, ends := x.group(b, g)
		invert(c.s, func(t int) []int32 { return c.seen(b, g, t) }, queries, ends)
	})
	return x
}

// seen returns the blocks of query t that begin at or before it.
func (c choice) seen(b, g, t int) []int32 {
	idx := c.of(b, g, t)
	for i, j := range idx {
		if j < 0 || int(j)*c.size > t {
			return idx[:i]
		}
	}
	return idx
}

func (x choosers) group(b, g int) (queries, ends []int32) {
	bg, n, blocks := b*x.hkv+g, x.s*x.n, x.blocks()
	return cpu.Slice[int32](x.queries)[bg*n:][:n], cpu.Slice[int32](x.ends)[bg*blocks:][:blocks]
}

// of returns the queries that see block j.
func (x choosers) of(b, g, j int) []int32 {
	queries, ends := x.group(b, g)
	return inverted(queries, ends, j)
}

// selectedBackward is the gradient of attention over chosen blocks. A piece of work writes
// the dq of adjoining queries, or the dk and dv of one block, whose queries the inverse of the choice lists.
type selectedBackward[T cpu.Float] struct {
	choice
	rowTiles     rowTiles
	q, k, do     Arg
	dq, dk, dval Arg
	keys, vals   packed[T]
	stats        rowStats[T]
	choosers     choosers

	// Of each worker: the scores and do·v of a query with all its keys, or of a tile of rows with a block; rows of q and
	// do; the dk and dv of a block; room for weigh.
	scores, dp, rowsQ, rowsDO, blockK, blockV, clean cpu.Region[T]
}

// bindSelectedGrad adds the phases of the gradient of bindSelected: in is q, k, v, idx, o, lse, do, out is dq, dk, dv.
func bindSelectedGrad[T cpu.Float](k *cpu.Kernel, block int, in, out []Arg) {
	a := dimsOf(in[0].Operand, in[1].Operand, in[2].Operand)
	c, r := newChoice(a, block, in[3]), a.rowTiles()
	scores := max(a.h*c.most(), r.rows()*c.size)
	f := &selectedBackward[T]{
		choice: c, rowTiles: r,
		q: in[0], k: in[1], do: in[6], dq: out[0], dk: out[1], dval: out[2],
		keys:     pack[T](k, in[1]),
		vals:     pack[T](k, in[2]),
		choosers: bindChoosers(k, c),
		scores:   cpu.Scratch[T](k, scores),
		dp:       cpu.Scratch[T](k, scores),
		rowsQ:    cpu.Scratch[T](k, r.rows()*a.d),
		rowsDO:   cpu.Scratch[T](k, r.rows()*a.dv),
		blockK:   cpu.Scratch[T](k, c.size*a.d),
		blockV:   cpu.Scratch[T](k, c.size*a.dv),
		clean:    cpu.Scratch[T](k, r.rows()*max(a.d, a.dv)),
	}
	f.stats = bindRowStats(k, a, c, in[0], f.keys, in[5])
	f.stats.bindDelta(k, in[4], in[6])
	k.Check = c.check
	bindQueries(k, a, queriesPerPiece, f.queries)
	k.Phase(a.b*a.hkv*c.blocks(), f.block)
}

// queries computes the dq of adjoining queries.
func (f *selectedBackward[T]) queries(b, g, first, end int, w *cpu.Worker) {
	s, dp, ld, scale := f.scores.Local(w), f.dp.Local(w), f.most(), softmaxScale[T](f.d)
	keys, vals, k := f.keys.group(b, g), f.vals.group(b, g), cpu.Slice[T](f.k.Buf)
	stats := f.stats.rows(b, g)
	for t := first; t < end; t++ {
		q := cpu.Slice[T](f.q.Buf)[f.row(b, t, g, f.d):]
		do := cpu.Slice[T](f.do.Buf)[f.row(b, t, g, f.dv):]
		dq := cpu.Slice[T](f.dq.Buf)[f.row(b, t, g, f.d):][:f.h*f.d]
		clear(dq)
		n := 0
		for lo, hi, rest := f.next(f.of(b, g, t), t); lo < hi; lo, hi, rest = f.next(rest, t) {
			dots(f.h, q, keys, f.d, lo, hi, s[n:], ld)
			dots(f.h, do, vals, f.dv, lo, hi, dp[n:], ld)
			n += hi - lo
		}
		for j := range f.h {
			softmaxGrad(s[j*ld:][:n], dp[j*ld:][:n], 0, n, stats[(t*f.h+j)*rowNumbers:], scale)
		}
		n = 0
		for lo, hi, rest := f.next(f.of(b, g, t), t); lo < hi; lo, hi, rest = f.next(rest, t) {
			cpu.Tile(f.h, f.d, hi-lo, dp[n:], ld, 1, k[f.key(b, lo, g, f.d):], f.hkv*f.d, dq, f.d, true)
			n += hi - lo
		}
	}
}

// block computes the dk and dv of one block from the rows of the queries that chose it, a tile at a time. Block 0, which
// all queries choose, comes first in every group.
func (f *selectedBackward[T]) block(piece int, w *cpu.Worker) {
	groups := f.b * f.hkv
	j, b, g := piece/groups, piece%groups/f.hkv, piece%f.hkv
	lo, hi := j*f.size, min(f.s, (j+1)*f.size)
	n := hi - lo
	q, do, s, dp, clean := f.rowsQ.Local(w), f.rowsDO.Local(w), f.scores.Local(w), f.dp.Local(w), f.clean.Local(w)
	dk, dv := f.blockK.Local(w)[:n*f.d], f.blockV.Local(w)[:n*f.dv]
	keys, vals, scale := f.keys.group(b, g), f.vals.group(b, g), softmaxScale[T](f.d)
	stats := f.stats.rows(b, g)

	clear(dk)
	clear(dv)
	for all := f.choosers.of(b, g, j); len(all) > 0; {
		tokens := all[:min(len(all), f.rowTiles.tokens)]
		all = all[len(tokens):]
		rows, rowsFinite := len(tokens)*f.h, true
		for i, t := range tokens {
			copy(q[i*f.h*f.d:][:f.h*f.d], cpu.Slice[T](f.q.Buf)[f.row(b, int(t), g, f.d):])
			copy(do[i*f.h*f.dv:][:f.h*f.dv], cpu.Slice[T](f.do.Buf)[f.row(b, int(t), g, f.dv):])
			rowsFinite = rowsFinite && f.stats.finite(stats, int(t)*f.h, int(t+1)*f.h)
		}
		dots(rows, q, keys, f.d, lo, hi, s, n)
		dots(rows, do, vals, f.dv, lo, hi, dp, n)
		for r := range rows {
			t := int(tokens[r/f.h])
			softmaxGrad(s[r*n:][:n], dp[r*n:][:n], 0, min(n, t+1-lo), stats[(t*f.h+r%f.h)*rowNumbers:], scale)
		}
		seen := func(i, r int) bool { return lo+i <= int(tokens[r/f.h]) }
		weigh(n, f.dv, rows, s, 1, n, do, f.dv, dv, rowsFinite, clean, seen)
		weigh(n, f.d, rows, dp, 1, n, q, f.d, dk, rowsFinite, clean, seen)
	}
	scatterKeys(f.dims, cpu.Slice[T](f.dk.Buf), dk, b, g, lo, hi, f.d)
	scatterKeys(f.dims, cpu.Slice[T](f.dval.Buf), dv, b, g, lo, hi, f.dv)
}
