package ref

import (
	"math"
	"sync"
)

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
