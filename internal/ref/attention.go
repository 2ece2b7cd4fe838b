package ref

import (
	"math"
	"sync"
)

// Attention is softmax attention over the keys that mask shows, scaled by 1/sqrt(D): q [B,S,Hq,D], k [B,T,Hkv,D],
// v [B,T,Hkv,Dv] -> o [B,S,Hq,Dv] and lse [B,Hq,S], the natural log of the sum of the exponentials of the scaled
// logits. Query head i belongs to group i / (Hq/Hkv). A row that sees no key has o = 0 and lse = -Inf.
func Attention(q, k, v *Tensor, mask Mask) (o, lse *Tensor) {
	B, S, Hq := q.Shape[0], q.Shape[1], q.Shape[2]
	o, lse = New(B, S, Hq, v.Shape[3]), New(B, Hq, S)
	eachRow(q, k, mask, func(_, b, t, head, g int, keys []int) {
		p := logits(q, k, b, t, head, g, keys)
		lse.Row(b, head)[t] = softmax(p, softmaxScale(q))
		out := o.Row(b, t, head)
		for i, s := range keys {
			axpy(p[i], v.Row(b, s, g), out)
		}
	})
	return o, lse
}

// AttentionGrad returns the gradients of Attention with respect to q, k and v from do [B,S,Hq,Dv] and the result o. If
// p is the softmax, dp = do·v and delta = do·o, the gradient of a scaled logit is p (dp - delta). A row that sees no
// key adds nothing. No gradient flows through lse.
func AttentionGrad(q, k, v, o, do *Tensor, mask Mask) (dq, dk, dv *Tensor) {
	dq = like(q)
	scale := softmaxScale(q)
	var dks, dvs [maxParts]*Tensor // of the queries of a part
	for i := range parts(q) {
		dks[i], dvs[i] = like(k), like(v)
	}
	eachRow(q, k, mask, func(part, b, t, head, g int, keys []int) {
		p := logits(q, k, b, t, head, g, keys)
		softmax(p, scale) // not exp(logit - lse): a large lse is too coarse to contain the log of the sum
		dout, row, drow := do.Row(b, t, head), q.Row(b, t, head), dq.Row(b, t, head)
		delta := dot(dout, o.Row(b, t, head))
		for i, s := range keys {
			ds := p[i] * (dot(dout, v.Row(b, s, g)) - delta) * scale
			axpy(ds, k.Row(b, s, g), drow)
			axpy(ds, row, dks[part].Row(b, s, g))
			axpy(p[i], dout, dvs[part].Row(b, s, g))
		}
	})
	for i := 1; i < parts(q); i++ {
		axpy(1, dks[i].Data, dks[0].Data)
		axpy(1, dvs[i].Data, dvs[0].Data)
	}
	return dq, dks[0], dvs[0]
}

// maxParts is the most parts that eachRow cuts the queries of a row into. It does not depend on the machine.
const maxParts = 16

// parts returns the number of parts for q [B,S,Hq,D].
func parts(q *Tensor) int { return min(maxParts, (q.Shape[1]+63)/64) }

// eachRow calls f for every query and query head, with the group and the keys that the query sees, ascending. It reuses
// keys. Parts of the queries, adjoining ones, run in parallel: f gets their number.
func eachRow(q, k *Tensor, mask Mask, f func(part, b, t, head, g int, keys []int)) {
	B, S, Hq := q.Shape[0], q.Shape[1], q.Shape[2]
	T, Hkv := k.Shape[1], k.Shape[2]
	h, n := Hq/Hkv, parts(q)
	var all sync.WaitGroup
	for part := range n {
		all.Go(func() {
			keys := make([]int, 0, T)
			for b := range B {
				for g := range Hkv {
					for t := part * S / n; t < (part+1)*S/n; t++ {
						keys = keys[:0]
						for s := range T {
							if mask(b, g, t, s) {
								keys = append(keys, s)
							}
						}
						for head := g * h; head < (g+1)*h; head++ {
							f(part, b, t, head, g, keys)
						}
					}
				}
			}
		})
	}
	all.Wait()
}

// logits returns q·k, not yet scaled, of one query head for the given keys.
func logits(q, k *Tensor, b, t, head, g int, keys []int) []float64 {
	row := q.Row(b, t, head)
	x := make([]float64, len(keys))
	for i, s := range keys {
		x[i] = dot(row, k.Row(b, s, g))
	}
	return x
}

// softmaxScale returns 1/sqrt(D), the factor of the logits of q [B,S,Hq,D].
func softmaxScale(q *Tensor) float64 { return 1 / math.Sqrt(float64(q.Shape[3])) }

// Mask reports whether query t of batch b sees key s of group g. A key is a token, or a compression block if the keys
// are compressed.
type Mask func(b, g, t, s int) bool

// CausalMask shows every token up to the query's own: s <= t.
func CausalMask() Mask { return func(_, _, t, s int) bool { return s <= t } }

// WindowMask shows the w newest tokens, the query's own included: t - w < s <= t.
func WindowMask(w int) Mask { return func(_, _, t, s int) bool { return s <= t && s > t-w } }

// CompressedMask shows the compression blocks that end at or before t; s counts blocks.
func CompressedMask(l, d int) Mask {
	return func(_, _, t, s int) bool { return s < NumVisible(t, l, d) }
}

// SelectedMask shows the tokens of the selected blocks, up to the query's own. idx [B,S,Hkv,n] holds n block indices
// for each query and group, n = len(idx) / (B*S*Hkv). Negative indices are padding. Order and repetition do not matter.
// The mask does not keep idx.
func SelectedMask(idx []int32, B, S, Hkv, lp int) Mask {
	n := len(idx) / (B * S * Hkv)
	ns := NumSelection(S, lp)
	hit := make([]bool, B*S*Hkv*ns) // [B,S,Hkv,Ns]
	for i, j := range idx {
		if j >= 0 {
			hit[i/n*ns+int(j)] = true
		}
	}
	return func(b, g, t, s int) bool { return s <= t && hit[((b*S+t)*Hkv+g)*ns+s/lp] }
}
