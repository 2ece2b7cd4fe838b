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

// AttentionRounded returns o and the gradients of Attention as an implementation gives them that computes exactly, but
// rounds the operands of its products (probabilities for those with v and do, gradients of logits for those with q and
// k) and its results, by `round`. Exponentials are relative to the largest logit of the row, and their sum is that of
// the exact ones. do is [B,S,Hq,Dv]. With a round that returns its argument the results are those of Attention and
// AttentionGrad. Heads run in parallel.
func AttentionRounded(q, k, v, do *Tensor, mask Mask, round func(float64) float64) (o, dq, dk, dv *Tensor) {
	o, dq, dk, dv = like(do), like(q), like(k), like(v)
	B, S, Hq, T, Hkv := q.Shape[0], q.Shape[1], q.Shape[2], k.Shape[1], k.Shape[2]
	scale := softmaxScale(q)
	dks, dvs := make([]*Tensor, Hq), make([]*Tensor, Hq) // of each head
	var heads sync.WaitGroup
	for head := range Hq {
		dks[head], dvs[head] = New(B, T, 1, k.Shape[3]), New(B, T, 1, v.Shape[3])
		heads.Go(func() {
			g, p, keys := head/(Hq/Hkv), make([]float64, T), make([]int, 0, T)
			for b := range B {
				for t := range S {
					keys = keys[:0]
					top, sum := math.Inf(-1), 0.0
					row, drow, out, dout := q.Row(b, t, head), dq.Row(b, t, head), o.Row(b, t, head), do.Row(b, t, head)
					for s := range T {
						if mask(b, g, t, s) {
							p[len(keys)], keys = dot(row, k.Row(b, s, g))*scale, append(keys, s)
							top = max(top, p[len(keys)-1])
						}
					}
					for i, s := range keys {
						p[i] = math.Exp(p[i] - top)
						sum += p[i]
						axpy(round(p[i]), v.Row(b, s, g), out)
					}
					for i := range out {
						out[i] = round(out[i] / max(sum, 1)) // the largest exponential is 1, unless no key is seen
					}
					delta := dot(dout, out)
					for i, s := range keys {
						p := p[i] / sum
						ds := round(p * (dot(dout, v.Row(b, s, g)) - delta))
						axpy(ds*scale, k.Row(b, s, g), drow)
						axpy(ds*scale, row, dks[head].Row(b, s, 0))
						axpy(round(p), dout, dvs[head].Row(b, s, 0))
					}
				}
			}
		})
	}
	heads.Wait()
	for b := range B {
		for s := range T {
			for head := range Hq {
				axpy(1, dks[head].Row(b, s, 0), dk.Row(b, s, head/(Hq/Hkv)))
				axpy(1, dvs[head].Row(b, s, 0), dv.Row(b, s, head/(Hq/Hkv)))
			}
		}
	}
	for _, x := range []*Tensor{dq, dk, dv} {
		for i := range x.Data {
			x.Data[i] = round(x.Data[i])
		}
	}
	return o, dq, dk, dv
}
