package ops

import (
	"slices"

	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// AttentionGradOp is the Spec of the gradient of an attention op: the inputs of Forward, o, lse, do -> dq, dk, dv. Further
// inputs of Forward have no gradient.
type AttentionGradOp[F AttentionSpec] struct {
	Forward F
	Delta   bool // delta [B,Hq,S] = rowsum(do·o) is in the place of o
}

// attentionGrad applies the gradient of op to its inputs, o, lse and do.
func attentionGrad[F AttentionSpec](op F, inputs gorgonia.Nodes, o, do *gorgonia.Node) (gorgonia.Nodes, error) {
	lse, err := LSE(o)
	if err != nil {
		return nil, err
	}
	grads, err := outputs(AttentionGradOp[F]{Forward: op}, 3, append(slices.Clone(inputs), o, lse, do)...)
	return append(grads, make(gorgonia.Nodes, len(inputs)-3)...), err
}

// TakeDelta returns the Spec that computes the gradient of an attention op from delta in the place of o, which is its third
// input from the end: do's own gradient op, GatedSumGradOp, can compute delta where it reads both. It is false for a Spec that
// is no such gradient or takes delta already.
func TakeDelta(grad Spec) (Spec, bool) {
	if op, ok := grad.(interface{ takeDelta() (Spec, bool) }); ok {
		return op.takeDelta()
	}
	return nil, false
}

func (op AttentionGradOp[F]) takeDelta() (Spec, bool) {
	return AttentionGradOp[F]{op.Forward, true}, !op.Delta
}

func (op AttentionGradOp[F]) Name() string { return "gradient of " + op.Forward.Name() }

func (op AttentionGradOp[F]) flops(in []Operand) float64 { return attentionFLOPs(op.Forward, in, 6, 4) }

func (op AttentionGradOp[F]) Infer(in []Operand) ([]Operand, error) {
	o := saved{"o", 0}
	if op.Delta {
		o = saved{"delta", 1}
	}
	in, err := inferGrad(op.Forward, op.Forward.inputs(), in, o, saved{"lse", 1}, saved{"do", 0})
	if err != nil {
		return nil, err
	}
	return in[:3], nil
}

func (op AttentionGradOp[F]) Bind(k *cpu.Kernel, in, out []Arg) { op.Forward.bindGrad(k, in, out) }

// backward is what the gradients of all attention ops share. Each output is written by one piece of work, so that the bits do
// not depend on the order of execution: a piece writes the dq of some queries, or the dk and dv of some keys. Both recompute
// the scores.
type backward[T cpu.Float] struct {
	dims
	q, k, do     Arg
	dq, dk, dval Arg
	keys, vals   packed[T]
	stats        rowStats[T]

	// Of each worker: rows of q and of do; scores and do·v; the dk and dv of some keys; room for weigh.
	rowsQ, rowsDO, scores, dp, tileK, tileV, clean cpu.Region[T]
}

// newBackward adds to k the phases that prepare the gradient: in is q, k, v, ..., o, lse, do, out is dq, dk, dv. A worker has
// at most the given number of scores at a time, and keys in keyGrad.
func newBackward[T cpu.Float](k *cpu.Kernel, a dims, m mask, scores, keys int, in, out []Arg) backward[T] {
	o, lse, do := in[len(in)-3], in[len(in)-2], in[len(in)-1]
	f := backward[T]{
		dims: a, q: in[0], k: in[1], do: do, dq: out[0], dk: out[1], dval: out[2],
		keys:   pack[T](k, in[1]),
		vals:   pack[T](k, in[2]),
		rowsQ:  cpu.Scratch[T](k, a.tileRows()*a.d),
		rowsDO: cpu.Scratch[T](k, a.tileRows()*a.dv),
		scores: cpu.Scratch[T](k, scores),
		dp:     cpu.Scratch[T](k, scores),
		tileK:  cpu.Scratch[T](k, keys*a.d),
		tileV:  cpu.Scratch[T](k, keys*a.dv),
		clean:  cpu.Scratch[T](k, max(chunkKeys, a.tileRows())*max(a.d, a.dv)),
	}
	f.stats = bindRowStats(k, a, m, in[0], f.keys, lse)
	f.stats.bindDelta(k, o, do)
	return f
}

// keyGrad writes the dk and dv of the keys [lo,hi) of a group, from the rows of n queries, ascending, that may see any of them:
// query returns the i-th, and visible the keys that a query sees.
func (f *backward[T]) keyGrad(b, g, lo, hi, n int, query func(i int) int, visible func(t int) (lo, hi int), w *cpu.Worker) {
	keys := hi - lo
	q, do, s, dp, clean := f.rowsQ.Local(w), f.rowsDO.Local(w), f.scores.Local(w), f.dp.Local(w), f.clean.Local(w)
	dk, dv := f.tileK.Local(w)[:keys*f.d], f.tileV.Local(w)[:keys*f.dv]
	packedK, packedV, stats := f.keys.group(b, g), f.vals.group(b, g), f.stats.rows(b, g)
	clear(dk)
	clear(dv)
	for first := 0; first < n; first += f.tokens {
		end := min(n, first+f.tokens)
		rows, areFinite := (end-first)*f.h, true
		for i := first; i < end; i++ {
			t, at := query(i), (i-first)*f.h
			gatherRows(f.dims, q[at*f.d:], cpu.Slice[T](f.q.Buf), b, g, t, t+1, f.d)
			gatherRows(f.dims, do[at*f.dv:], cpu.Slice[T](f.do.Buf), b, g, t, t+1, f.dv)
			areFinite = areFinite && f.stats.finite(stats, t*f.h, (t+1)*f.h)
		}
		dots(rows, q, packedK, f.d, lo, hi, s, keys)
		dots(rows, do, packedV, f.dv, lo, hi, dp, keys)
		for r := range rows {
			t := query(first + r/f.h)
			from, to := visible(t)
			from, to = overlap(from, to, lo, hi)
			softmaxGrad(s[r*keys:][:keys], dp[r*keys:][:keys], from, to, stats[(t*f.h+r%f.h)*rowNumbers:], softmaxScale[T](f.d))
		}
		seen := func(i, r int) bool {
			from, to := visible(query(first + r/f.h))
			return from <= lo+i && lo+i < to
		}
		weigh(keys, f.dv, rows, s, 1, keys, do, f.dv, dv, areFinite, clean, seen)
		weigh(keys, f.d, rows, dp, 1, keys, q, f.d, dk, areFinite, clean, seen)
	}
	for i := range keys {
		copy(cpu.Slice[T](f.dk.Buf)[f.key(b, lo+i, g, f.d):][:f.d], dk[i*f.d:])
		copy(cpu.Slice[T](f.dval.Buf)[f.key(b, lo+i, g, f.dv):][:f.dv], dv[i*f.dv:])
	}
}

// spanBackward is the gradient of attention under a span: a tile of rows writes its dq, a tile of keys its dk and dv.
//
// If a group has at least fewKeys times as many queries as keys (compressed attention), its queries are cut into as many parts
// instead, at most mostParts. Each part has its own dk and dv for all keys, which are summed at the end; together they are no
// larger than q. The scores are then computed once instead of twice, and the work is parallel over queries instead of the few
// keys.
type spanBackward[T cpu.Float] struct {
	backward[T]
	mask           span
	finiteKeys     finiteTiles
	rowsDQ         cpu.Region[T] // of each worker
	parts          int
	partsK, partsV *cpu.Buf // [B,Hkv,parts,T,D] and [B,Hkv,parts,T,Dv]
}

const (
	fewKeys   = 4
	mostParts = 32
)

// bindSpanGrad adds the phases of the gradient of bindSpan: in is q, k, v, o, lse, do, out is dq, dk, dv.
func bindSpanGrad[T cpu.Float](k *cpu.Kernel, mask span, in, out []Arg) {
	a := dimsOf(in[0].Shape, in[1].Shape, in[2].Shape)
	f := &spanBackward[T]{
		backward:   newBackward[T](k, a, mask, a.tileRows()*chunkKeys, keyTile, in, out),
		mask:       mask,
		finiteKeys: bindFinite[T](k, in[1]),
		rowsDQ:     cpu.Scratch[T](k, a.tileRows()*a.d),
		parts:      min(a.s/a.t, mostParts),
	}
	if f.parts < fewKeys {
		bindQueries(k, a, a.tokens, func(b, g, t0, t1 int, w *cpu.Worker) { f.rowGrad(b, g, t0, t1, nil, nil, w) })
		bindGroups(k, a, f.keys.tiles, func(b, g, tile int, w *cpu.Worker) {
			from, to := part(tile, keyTile, f.t)
			first, end := f.mask.queries(from, to, f.s)
			f.keyGrad(b, g, from, to, end-first, func(i int) int { return first + i }, f.mask.keys, w)
		})
		return
	}
	keys := a.b * a.hkv * f.parts * a.t
	f.partsK, f.partsV = cpu.Work[T](k, keys*a.d), cpu.Work[T](k, keys*a.dv)
	bindGroups(k, a, f.parts, f.queryPart)
	bindGroups(k, a, f.keys.tiles, func(b, g, tile int, _ *cpu.Worker) {
		from, to := part(tile, keyTile, f.t)
		for key := from; key < to; key++ {
			f.sumOfParts(f.dk, f.partsK, b, g, key, f.d)
			f.sumOfParts(f.dval, f.partsV, b, g, key, f.dv)
		}
	})
}

// queryPart computes the dq of every parts-th tile of rows of a group, and what these give to dk and dv.
func (f *spanBackward[T]) queryPart(b, g, i int, w *cpu.Worker) {
	at := ((b*f.hkv+g)*f.parts + i) * f.t
	dk := cpu.Slice[T](f.partsK)[at*f.d:][:f.t*f.d]
	dv := cpu.Slice[T](f.partsV)[at*f.dv:][:f.t*f.dv]
	clear(dk)
	clear(dv)
	for t0 := i * f.tokens; t0 < f.s; t0 += f.parts * f.tokens {
		f.rowGrad(b, g, t0, min(f.s, t0+f.tokens), dk, dv, w)
	}
}

// sumOfParts sums the parts of one key, in their order, to its row of x [B,T,Hkv,c].
func (f *spanBackward[T]) sumOfParts(x Arg, parts *cpu.Buf, b, g, key, c int) {
	row, all := cpu.Slice[T](x.Buf)[f.key(b, key, g, c):][:c], cpu.Slice[T](parts)
	at := (b*f.hkv+g)*f.parts*f.t + key
	copy(row, all[at*c:])
	for i := 1; i < f.parts; i++ {
		cpu.Add(row, row, all[(at+i*f.t)*c:][:c])
	}
}

// rowGrad computes the dq of the rows of the queries [t0,t1) of a group. It adds what they give to dk [T,D] and dv [T,Dv],
// unless these are nil.
func (f *spanBackward[T]) rowGrad(b, g, t0, t1 int, dk, dv []T, w *cpu.Worker) {
	rows := (t1 - t0) * f.h
	q, do, dq := f.rowsQ.Local(w), f.rowsDO.Local(w), f.rowsDQ.Local(w)[:rows*f.d]
	s, dp, clean, scale := f.scores.Local(w), f.dp.Local(w), f.clean.Local(w), softmaxScale[T](f.d)
	keys, vals, k := f.keys.group(b, g), f.vals.group(b, g), cpu.Slice[T](f.k.Buf)
	stats := f.stats.rows(b, g)
	rowsFinite := f.stats.finite(stats, t0*f.h, t1*f.h)

	gatherRows(f.dims, q, cpu.Slice[T](f.q.Buf), b, g, t0, t1, f.d)
	gatherRows(f.dims, do, cpu.Slice[T](f.do.Buf), b, g, t0, t1, f.dv)
	clear(dq)
	lo, hi := f.mask.tile(t0, t1)
	for from, to := lo, chunkEnd(lo, hi); from < hi; from, to = to, chunkEnd(to, hi) {
		dots(rows, q, keys, f.d, from, to, s, chunkKeys)
		dots(rows, do, vals, f.dv, from, to, dp, chunkKeys)
		for r := range rows {
			x, y := f.mask.keys(t0 + r/f.h)
			x, y = overlap(x, y, from, to)
			at := r * chunkKeys
			softmaxGrad(s[at:][:to-from], dp[at:][:to-from], x, y, stats[(t0*f.h+r)*rowNumbers:], scale)
		}
		sees := func(r, i int) bool { return f.mask.sees(t0+r/f.h, from+i) }
		weigh(rows, f.d, to-from, dp, chunkKeys, 1, k[f.key(b, from, g, f.d):], f.hkv*f.d, dq, f.finiteKeys.keys(b, from, to), clean, sees)
		if dk != nil {
			seen := func(i, r int) bool { return sees(r, i) }
			weigh(to-from, f.dv, rows, s, 1, chunkKeys, do, f.dv, dv[from*f.dv:], rowsFinite, clean, seen)
			weigh(to-from, f.d, rows, dp, 1, chunkKeys, q, f.d, dk[from*f.d:], rowsFinite, clean, seen)
		}
	}
	scatterRows(f.dims, cpu.Slice[T](f.dq.Buf), dq, b, g, t0, t1, f.d)
}
