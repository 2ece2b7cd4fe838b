package ops

import "github.com/gorgonia-nsa/nsa/internal/cpu"

// choosers lists for each block of each group the queries that chose it and see some of it, ascending.
type choosers struct {
	choice
	queries *cpu.Buf // int32 [B,Hkv,S*n]: the lists of a group one after the other
	ends    *cpu.Buf // int32 [B,Hkv,blocks]: where they end
}

// bindChoosers adds to k the phase that inverts c.
func bindChoosers(k *cpu.Kernel, c choice) choosers {
	x := choosers{c, cpu.Work[int32](k, c.b*c.hkv*c.s*c.n), cpu.Work[int32](k, c.b*c.hkv*c.blocks())}
	bindGroups(k, c.dims, 1, func(b, g, _ int, _ *cpu.Worker) {
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

// selectedBackward is the gradient of attention over chosen blocks. A piece of work writes the dq of adjoining queries, or the
// dk and dv of one block, whose queries the inverse of the choice lists.
type selectedBackward[T cpu.Float] struct {
	backward[T]
	choice   choice
	choosers choosers
}

// bindSelectedGrad adds the phases of the gradient of bindSelected: in is q, k, v, idx, o, lse, do, out is dq, dk, dv.
func bindSelectedGrad[T cpu.Float](k *cpu.Kernel, block int, in, out []Arg) {
	a := dimsOf(in[0].Shape, in[1].Shape, in[2].Shape)
	c := newChoice(a, block, in[3])
	scores := max(a.h*c.most(), a.tileRows()*c.size)
	f := &selectedBackward[T]{newBackward[T](k, a, c, scores, c.size, in, out), c, bindChoosers(k, c)}
	k.Check = c.check
	bindQueries(k, a, queriesPerPiece, f.queries)
	k.Phase(a.b*a.hkv*c.blocks(), f.block)
}

// queries computes the dq of adjoining queries.
func (f *selectedBackward[T]) queries(b, g, first, end int, w *cpu.Worker) {
	s, dp, ld, scale := f.scores.Local(w), f.dp.Local(w), f.choice.most(), softmaxScale[T](f.d)
	keys, vals, k := f.keys.group(b, g), f.vals.group(b, g), cpu.Slice[T](f.k.Buf)
	stats := f.stats.rows(b, g)
	for t := first; t < end; t++ {
		q := cpu.Slice[T](f.q.Buf)[f.row(b, t, g, f.d):]
		do := cpu.Slice[T](f.do.Buf)[f.row(b, t, g, f.dv):]
		dq := cpu.Slice[T](f.dq.Buf)[f.row(b, t, g, f.d):][:f.h*f.d]
		clear(dq)
		n := 0
		for lo, hi := f.choice.run(b, g, t, 0); lo < hi; lo, hi = f.choice.run(b, g, t, hi) {
			dots(f.h, q, keys, f.d, lo, hi, s[n:], ld)
			dots(f.h, do, vals, f.dv, lo, hi, dp[n:], ld)
			n += hi - lo
		}
		for j := range f.h {
			softmaxGrad(s[j*ld:][:n], dp[j*ld:][:n], 0, n, stats[(t*f.h+j)*rowNumbers:], scale)
		}
		n = 0
		for lo, hi := f.choice.run(b, g, t, 0); lo < hi; lo, hi = f.choice.run(b, g, t, hi) {
			cpu.Tile(f.h, f.d, hi-lo, dp[n:], ld, 1, k[f.key(b, lo, g, f.d):], f.hkv*f.d, dq, f.d, true)
			n += hi - lo
		}
	}
}

// block computes the dk and dv of one block from the queries that chose it. Block 0, which all queries choose, comes first in
// every group.
func (f *selectedBackward[T]) block(piece int, w *cpu.Worker) {
	groups := f.b * f.hkv
	j, b, g := piece/groups, piece%groups/f.hkv, piece%f.hkv
	lo, hi := part(j, f.choice.size, f.s)
	queries := f.choosers.of(b, g, j)
	f.keyGrad(b, g, lo, hi, len(queries), func(i int) int { return int(queries[i]) }, func(t int) (int, int) { return 0, t + 1 }, w)
}
