package ops

import (
	"fmt"
	"slices"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// attentionGrad builds the gradient of an attention op: spec is applied to the op's inputs, o, lse and do, and gives dq,
// dk and dv, the gradients of the first three inputs. The others have none.
func attentionGrad(spec Spec, inputs gorgonia.Nodes, o, do *gorgonia.Node) (gorgonia.Nodes, error) {
	lse, err := LSE(o)
	if err != nil {
		return nil, err
	}
	grads, err := outputs(spec, 3, append(slices.Clone(inputs), o, lse, do)...)
	return append(grads, make(gorgonia.Nodes, len(inputs)-3)...), err
}

// inferAttentionGrad is the shape rule of the gradient ops: the inputs of forward, o, lse, do -> dq, dk, dv.
func inferAttentionGrad(forward Spec, in []Operand) ([]Operand, error) {
	n := len(in) - 3
	if n < 3 {
		return nil, fmt.Errorf("%d inputs, want those of %s and o, lse, do", len(in), forward.Name())
	}
	out, err := forward.Infer(in[:n])
	if err != nil {
		return nil, err
	}
	if err := wantInputs([]Operand{in[0], in[n], in[n+1], in[n+2]}, float("q", 4), float("o", 4), float("lse", 3), float("do", 4)); err != nil {
		return nil, err
	}
	for i, want := range []tensor.Shape{out[0].Shape, out[1].Shape, out[0].Shape} {
		if err := wantShape([]string{"o", "lse", "do"}[i], in[n+i].Shape, want...); err != nil {
			return nil, err
		}
	}
	return []Operand{in[0], in[1], in[2]}, nil
}

// spanBackward is the gradient of attention under a span. Each output is written by one piece of work, so that the bits do not
// depend on the order of execution: a tile of rows writes its dq, a tile of keys its dk and dv. Both recompute the scores.
// Where keys are few (see keyParts), the rows go through the keys once and sum dk and dv in parts.
type spanBackward[T cpu.Float] struct {
	rowTiles
	mask         span
	q, k, do     Arg
	dq, dk, dval Arg
	keys, vals   packed[T]
	finiteKeys   finiteTiles
	stats        rowStats[T]
	parts        keyParts

	// Of each worker: rows of q, of do and of dq; scores and do·v; the dk and dv of a tile of keys; room for weigh.
	rowsQ, rowsDO, rowsDQ, scores, dp, tileK, tileV, clean cpu.Region[T]
}

// bindSpanGrad adds the phases of the gradient of bindSpan: in is q, k, v, o, lse, do, out is dq, dk, dv.
func bindSpanGrad[T cpu.Float](k *cpu.Kernel, mask span, in, out []Arg) {
	r := dimsOf(in[0].Operand, in[1].Operand, in[2].Operand).rowTiles()
	f := &spanBackward[T]{
		rowTiles: r, mask: mask, q: in[0], k: in[1], do: in[5], dq: out[0], dk: out[1], dval: out[2],
		keys:       pack[T](k, in[1]),
		vals:       pack[T](k, in[2]),
		finiteKeys: bindFinite[T](k, in[1]),
		rowsQ:      cpu.Scratch[T](k, r.rows()*r.d),
		rowsDO:     cpu.Scratch[T](k, r.rows()*r.dv),
		rowsDQ:     cpu.Scratch[T](k, r.rows()*r.d),
		scores:     cpu.Scratch[T](k, r.rows()*chunkKeys),
		dp:         cpu.Scratch[T](k, r.rows()*chunkKeys),
		tileK:      cpu.Scratch[T](k, keyTile*r.d),
		tileV:      cpu.Scratch[T](k, keyTile*r.dv),
		clean:      cpu.Scratch[T](k, max(chunkKeys, r.rows())*max(r.d, r.dv)),
	}
	f.stats = bindRowStats(k, r.dims, mask, in[0], f.keys, in[4])
	f.stats.bindDelta(k, in[3], in[5])
	if n := r.s / r.t; n >= fewKeys {
		f.parts = bindKeyParts[T](k, r.dims, min(n, mostParts))
		k.Phase(r.b*r.hkv*f.parts.n, f.queryPart)
		bindSumOfParts[T](k, r.dims, f.parts, f.dk, f.dval)
		return
	}
	k.Phase(r.pieces(), f.queryTile)
	k.Phase(r.b*r.hkv*f.keys.tiles, f.keyTile)
}

// queryTile computes the dq of a tile of rows.
func (f *spanBackward[T]) queryTile(piece int, w *cpu.Worker) {
	b, g, t0, t1 := f.at(piece)
	f.rowGrad(b, g, t0, t1, nil, nil, w)
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
	lo, _ := f.mask.keys(t0)
	_, hi := f.mask.keys(t1 - 1)
	for from := lo / 16 * 16; from < hi; {
		to := chunkEnd(from, hi)
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
		from = to
	}
	scatterRows(f.dims, cpu.Slice[T](f.dq.Buf), dq, b, g, t0, t1, f.d)
}

// keyTile computes the dk and dv of a tile of keys, from the rows that see any of them.
func (f *spanBackward[T]) keyTile(piece int, w *cpu.Worker) {
	bg, from := piece/f.keys.tiles, piece%f.keys.tiles*keyTile
	b, g, to := bg/f.hkv, bg%f.hkv, min(f.t, from+keyTile)
	n := to - from
	q, do, s, dp, clean := f.rowsQ.Local(w), f.rowsDO.Local(w), f.scores.Local(w), f.dp.Local(w), f.clean.Local(w)
	dk, dv := f.tileK.Local(w)[:n*f.d], f.tileV.Local(w)[:n*f.dv]
	keys, vals, scale := f.keys.group(b, g), f.vals.group(b, g), softmaxScale[T](f.d)
	stats := f.stats.rows(b, g)

	clear(dk)
	clear(dv)
	first, end := f.mask.queries(from, to, f.s)
	for t0 := first; t0 < end; t0 += f.tokens {
		t1 := min(end, t0+f.tokens)
		rows := (t1 - t0) * f.h
		gatherRows(f.dims, q, cpu.Slice[T](f.q.Buf), b, g, t0, t1, f.d)
		gatherRows(f.dims, do, cpu.Slice[T](f.do.Buf), b, g, t0, t1, f.dv)
		dots(rows, q, keys, f.d, from, to, s, keyTile)
		dots(rows, do, vals, f.dv, from, to, dp, keyTile)
		for r := range rows {
			x, y := f.mask.keys(t0 + r/f.h)
			x, y = overlap(x, y, from, to)
			at := r * keyTile
			softmaxGrad(s[at:][:n], dp[at:][:n], x, y, stats[(t0*f.h+r)*rowNumbers:], scale)
		}
		seen := func(i, r int) bool { return f.mask.sees(t0+r/f.h, from+i) }
		rowsFinite := f.stats.finite(stats, t0*f.h, t1*f.h)
		weigh(n, f.dv, rows, s, 1, keyTile, do, f.dv, dv, rowsFinite, clean, seen)
		weigh(n, f.d, rows, dp, 1, keyTile, q, f.d, dk, rowsFinite, clean, seen)
	}
	scatterKeys(f.dims, cpu.Slice[T](f.dk.Buf), dk, b, g, from, to, f.d)
	scatterKeys(f.dims, cpu.Slice[T](f.dval.Buf), dv, b, g, from, to, f.dv)
}

// scatterKeys copies src [hi-lo,c] to the keys [lo,hi) of group g of x [B,T,Hkv,c].
func scatterKeys[T cpu.Float](a dims, x, src []T, b, g, lo, hi, c int) {
	for s := lo; s < hi; s++ {
		copy(x[a.key(b, s, g, c):][:c], src[(s-lo)*c:])
	}
}
