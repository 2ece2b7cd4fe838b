package ops_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// own gives b copies of its inputs, which the branches share.
func (b branch) own() {
	for i := range b.inputs {
		b.inputs[i].floats = slices.Clone(b.inputs[i].floats)
	}
}

// exactLogits sets q and k so that q·k is the same number in float32 and in float64: offset plus small integers, all times
// 2^exponent.
func exactLogits(q, k array, exponent int, offset float64) {
	d, a := q.shape[3], exponent/2
	for _, x := range []array{q, k} {
		for i, v := range x.floats {
			x.floats[i] = math.Max(-3, math.Min(3, math.Round(2*v)))
			if i%d == 0 && x.name == "q" {
				x.floats[i] += offset
			} else if i%d == 0 && d > 1 {
				x.floats[i] = 1
			}
		}
	}
	for i := range q.floats {
		q.floats[i] = math.Ldexp(q.floats[i], a)
	}
	for i := range k.floats {
		k.floats[i] = math.Ldexp(k.floats[i], exponent-a)
	}
}

// TestAttentionLargeLogits: outputs and gradients are as exact for logits near the overflow as for small ones, where an
// LSE has no room for the log of the sum.
func TestAttentionLargeLogits(t *testing.T) {
	p := ops.Params{BlockLen: 4, Stride: 2, SelectBlock: 4, TopN: 5, Window: 20}
	for _, D := range []int{1, 3, 64, 80, 96, 256} {
		c := sizes{1, 70, 2, 1, D, 3}
		do := c.normal("do", 9, c.B, c.S, c.Hq, c.Dv)
		for _, m := range []struct {
			exponent int
			offset   float64
			float64  bool // beyond float32
		}{
			{-10, 0, false}, {-3, 0, false}, {0, 0, false}, {3, 0, false}, {9, 0, false}, {20, 0, false}, {31, 0, false},
			{50, 0, false}, {99, 0, false}, {114, 0, false}, {-4, 1 << 18, false}, {-2, -1 << 20, false}, {1, 1 << 21, false},
			{-3, 1 << 45, true}, {128, 0, true}, {500, 0, true}, {1010, 0, true},
		} {
			for _, b := range branches(c, p) {
				b.own()
				exactLogits(b.inputs[0], b.inputs[1], m.exponent, m.offset)
				q, k, v := tensorOf(b.inputs[0]), tensorOf(b.inputs[1]), tensorOf(b.inputs[2])
				o, lse := ref.Attention(q, k, v, b.mask)
				dq, dk, dv := ref.AttentionGrad(q, k, v, o, tensorOf(do), b.mask)
				for _, dt := range dtypes {
					if m.float64 && dt == tensor.Float32 {
						continue
					}
					t.Run(fmt.Sprintf("%s/D%d/%v/%v", b.name, D, m, dt), func(t *testing.T) {
						forward, backward := b.run(t, dt, do)
						testutil.Within(t, "o", forward[0].floats, o.Data, tolerance(dt))
						testutil.Within(t, "lse", forward[1].floats, lse.Data, tolerance(dt))
						testutil.Within(t, "dq", backward[0].floats, dq.Data, tolerance(dt))
						testutil.Within(t, "dv", backward[2].floats, dv.Data, tolerance(dt))
						testutil.Within(t, "dk", backward[1].floats, dk.Data, tolerance(dt))
						if m.offset != 0 && D > 1 { // which makes the first column large
							testutil.Within(t, "dk", others(backward[1].floats, D), others(dk.Data, D), tolerance(dt))
						}
						if b.name == "compressed" {
							idx := outputs(t, ops.SelectBlocksOp{Params: p}, dt, b.inputs[0], b.inputs[1], forward[1])[0]
							requireChoice(t, c, p, idx.ints, b.inputs[0], b.inputs[1])
						}
					})
				}
			}
		}
	}
}

// others returns the columns of x [rows,d] but the first.
func others(x []float64, d int) (list []float64) {
	for at, v := range x {
		if at%d > 0 {
			list = append(list, v)
		}
	}
	return list
}

// TestAttentionWeightsSumToOne: for normal inputs of any scale, whose logits are rounded. With v = 1 an output is the sum of
// its weights, and with do = 1 the sum of dv is the number of rows.
func TestAttentionWeightsSumToOne(t *testing.T) {
	p := ops.Params{BlockLen: 4, Stride: 2, SelectBlock: 4, TopN: 5, Window: 20}
	for _, D := range []int{1, 3, 64, 80, 96, 256} {
		c := sizes{1, 70, 2, 1, D, 1}
		do := array{name: "do", shape: []int{c.B, c.S, c.Hq, c.Dv}, floats: slices.Repeat([]float64{1}, c.B*c.S*c.Hq*c.Dv)}
		for _, scale := range []float64{1, 30, 1e3, 5e4, 1e9, 1e17} {
			for _, b := range branches(c, p) {
				b.own()
				for _, x := range b.inputs[:2] {
					for i := range x.floats {
						x.floats[i] *= scale
					}
				}
				v := b.inputs[2]
				copy(v.floats, slices.Repeat([]float64{1}, len(v.floats)))
				for _, dt := range dtypes {
					t.Run(fmt.Sprintf("%s/D%d/%v/%v", b.name, D, scale, dt), func(t *testing.T) {
						forward, backward := b.run(t, dt, do)
						rows, sum := 0.0, 0.0
						for i, lse := range forward[1].floats {
							o := forward[0].floats[i%c.S*c.Hq+i/c.S]
							if math.IsInf(lse, -1) {
								require.Zero(t, o)
								continue
							}
							require.InDelta(t, 1, o, tolerance(dt))
							rows++
						}
						for _, x := range backward[2].floats {
							sum += x
						}
						require.InDelta(t, 1, sum/rows, tolerance(dt))
					})
				}
			}
		}
	}
}
