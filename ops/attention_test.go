package ops_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
)

// TestAttentionGradientsOfSharedInput: a node that is query, key and value at once gets the sum of the three gradients.
// The LSE is read as well.
func TestAttentionGradientsOfSharedInput(t *testing.T) {
	c, p := opcases.NewDims(2, 37, 3, 3, 8, 8), ops.Params{BlockLen: 1, Stride: 1, SelectBlock: 4, TopN: 4, Window: 9}
	weights := normal("weights", 9, c.B, c.S, c.Hq, c.Dv)
	x, _, _ := c.Tokens(1)
	for _, b := range opcases.Branches(c, p) {
		X := x.Tensor()
		o, lse := ref.Attention(X, X, X, b.Mask)
		dq, dk, dv := ref.AttentionGrad(X, X, X, o, weights.Tensor(), b.Mask)
		for vm := range vms {
			var read G.Value
			res := runGraph(t, vm, tensor.Float64, func(in []*G.Node) (*G.Node, error) {
				o, err := b.Build(append([]*G.Node{in[0], in[0], in[0]}, in[1:]...))
				if err == nil {
					G.Read(G.Must(attention.LSE(o)), &read)
				}
				return o, err
			}, weights.Floats, append([]array{x}, b.Inputs[3:]...)...)
			what := vm + ", " + b.Name + ": "
			testutil.Within(t, what+"o", res.out, o.Data, 1e-10)
			testutil.Within(t, what+"lse", testutil.Floats(t, read.Data()), lse.Data, 1e-10)
			testutil.Within(t, what+"gradient", res.grads[x.Name], ref.Add(dq, dk, dv).Data, 1e-10)
		}
	}
}

// TestAttentionInfiniteLogits: logits of -Inf have no weight, even before finite ones. A row that has only these gives
// zeros.
func TestAttentionInfiniteLogits(t *testing.T) {
	c, p := opcases.NewDims(1, 1100, 2, 1, 4, 3), ops.Params{BlockLen: 1, Stride: 1, SelectBlock: 8, TopN: 4, Window: 600}
	const far = 700 // beyond the first chunk of keys
	do := normal("do", 9, c.B, c.S, c.Hq, c.Dv)
	for _, b := range opcases.Branches(c, p) {
		q, k := b.Inputs[0], b.Inputs[1]
		for i, x := range q.Floats {
			q.Floats[i] = math.Abs(x)
		}
		for i := range k.Floats[:far*c.Hkv*c.D] {
			k.Floats[i] = math.Inf(-1)
		}
		o, lse := ref.Attention(q.Tensor(), k.Tensor(), b.Inputs[2].Tensor(), b.Mask)
		for _, dt := range dtypes {
			t.Run(fmt.Sprint(b.Name, "/", dt), func(t *testing.T) {
				forward, backward := runAttention(t, b, dt, do)
				testutil.Within(t, "o", forward[0].Floats, o.Data, tolerance(dt))
				testutil.Within(t, "lse", forward[1].Floats, lse.Data, tolerance(dt))
				require.Equal(t, make([]float64, far*c.Hq*c.Dv), forward[0].Floats[:far*c.Hq*c.Dv])
				require.True(t, math.IsInf(forward[1].Floats[far-1], -1))
				require.False(t, math.IsInf(forward[1].Floats[far], -1))
				dv := backward[2].Floats
				require.Equal(t, make([]float64, far*c.Hkv*c.Dv), dv[:far*c.Hkv*c.Dv])
			})
		}
	}
}

// TestAttentionMemory: work memory grows no faster than the sequence, and a run allocates nothing.
func TestAttentionMemory(t *testing.T) {
	p := ops.Params{BlockLen: 32, Stride: 16, SelectBlock: 64, TopN: 16, Window: 512}
	team := cpu.NewTeam(1)
	bytes := func(S int) (list []int) {
		var do func(spec spec.Spec, in []array) []array
		do = func(spec spec.Spec, in []array) []array {
			x := bindSpec(t, spec, tensor.Float32, 1, in...)
			run := func() { require.NoError(t, team.Run(&x.kernel, x.mem)) }
			run()
			require.Zero(t, testing.AllocsPerRun(2, run), spec.Name())
			list = append(list, x.kernel.WorkBytes(1))
			out := x.read()
			if _, ok := spec.(attention.Compressed); ok {
				do(attention.SelectBlocks{Params: p}, []array{in[0], in[1], out[1]})
			}
			return out
		}
		for _, b := range opcases.Branches(opcases.NewDims(1, S, 2, 1, 8, 8), p) {
			runPlan(t, b, nil, do)
		}
		return list
	}
	long := bytes(2048)
	require.Len(t, long, 9)
	for i, short := range bytes(1024) {
		require.LessOrEqual(t, float64(long[i]), 2.01*float64(short), "call %d", i)
	}
}

// exactLogits sets q and k so that q·k is the same number in float32 and in float64: offset plus small integers, all
// times 2^exponent.
func exactLogits(q, k array, exponent int, offset float64) {
	d, a := q.Shape[3], exponent/2
	for _, x := range []array{q, k} {
		for i, v := range x.Floats {
			x.Floats[i] = math.Max(-3, math.Min(3, math.Round(2*v)))
			if i%d == 0 && x.Name == "q" {
				x.Floats[i] += offset
			} else if i%d == 0 && d > 1 {
				x.Floats[i] = 1
			}
		}
	}
	for i := range q.Floats {
		q.Floats[i] = math.Ldexp(q.Floats[i], a)
	}
	for i := range k.Floats {
		k.Floats[i] = math.Ldexp(k.Floats[i], exponent-a)
	}
}

// TestAttentionLargeLogits: outputs and gradients are as exact for logits near the overflow as for small logits. An LSE
// of large logits is too coarse to contain the log of the sum.
func TestAttentionLargeLogits(t *testing.T) {
	p := ops.Params{BlockLen: 4, Stride: 2, SelectBlock: 4, TopN: 5, Window: 20}
	for i, D := range []int{1, 3, 64, 80, 96, 256} {
		c := opcases.NewDims(1, 70, 2, 1, D, 3)
		do := normal("do", 9, c.B, c.S, c.Hq, c.Dv)
		for j, m := range []struct {
			exponent int
			offset   float64
			float64  bool // beyond the range of float32
		}{
			{-10, 0, false}, {-3, 0, false}, {0, 0, false}, {3, 0, false}, {9, 0, false}, {20, 0, false}, {31, 0, false},
			{50, 0, false}, {99, 0, false}, {114, 0, false}, {-4, 1 << 18, false}, {-2, -1 << 20, false}, {1, 1 << 21, false},
			{-3, 1 << 45, true}, {128, 0, true}, {500, 0, true}, {1010, 0, true},
		} {
			if (i+j)%2 == 1 && !testutil.Full(t) {
				continue
			}
			for _, b := range opcases.Branches(c, p) {
				exactLogits(b.Inputs[0], b.Inputs[1], m.exponent, m.offset)
				q, k, v := b.Inputs[0].Tensor(), b.Inputs[1].Tensor(), b.Inputs[2].Tensor()
				o, lse := ref.Attention(q, k, v, b.Mask)
				dq, dk, dv := ref.AttentionGrad(q, k, v, o, do.Tensor(), b.Mask)
				for _, dt := range dtypes {
					if m.float64 && dt == tensor.Float32 {
						continue
					}
					t.Run(fmt.Sprintf("%s/D%d/%v/%v", b.Name, D, m, dt), func(t *testing.T) {
						forward, backward := runAttention(t, b, dt, do)
						testutil.Within(t, "o", forward[0].Floats, o.Data, tolerance(dt))
						testutil.Within(t, "lse", forward[1].Floats, lse.Data, tolerance(dt))
						testutil.Within(t, "dq", backward[0].Floats, dq.Data, tolerance(dt))
						testutil.Within(t, "dv", backward[2].Floats, dv.Data, tolerance(dt))
						testutil.Within(t, "dk", backward[1].Floats, dk.Data, tolerance(dt))
						if m.offset != 0 && D > 1 { // the offset makes the first column large
							testutil.Within(t, "dk", others(backward[1].Floats, D), others(dk.Data, D), tolerance(dt))
						}
						if b.Name == "compressed" {
							idx := runSpec(t, attention.SelectBlocks{Params: p}, dt, b.Inputs[0], b.Inputs[1], forward[1])[0]
							require.NoError(t, testutil.Err(opcases.CheckSelection(p, q, k, idx.Ints, tolerance(dt))))
						}
					})
				}
			}
		}
	}
}

// others returns the columns of x [rows,d] without the first one.
func others(x []float64, d int) (list []float64) {
	for at, v := range x {
		if at%d > 0 {
			list = append(list, v)
		}
	}
	return list
}

// TestAttentionWeightsSumToOne: the weights of a row sum to 1 for normal inputs of any scale, whose logits are rounded.
// If v is 1, an output is the sum of its weights. If do is 1, the sum of dv is the number of rows.
func TestAttentionWeightsSumToOne(t *testing.T) {
	p := ops.Params{BlockLen: 4, Stride: 2, SelectBlock: 4, TopN: 5, Window: 20}
	for _, D := range []int{1, 3, 64, 80, 96, 256} {
		c := opcases.NewDims(1, 70, 2, 1, D, 1)
		do := array{Name: "do", Shape: []int{c.B, c.S, c.Hq, c.Dv}, Floats: slices.Repeat([]float64{1}, c.B*c.S*c.Hq*c.Dv)}
		for _, scale := range []float64{1, 30, 1e3, 5e4, 1e9, 1e17} {
			for _, b := range opcases.Branches(c, p) {
				for _, x := range b.Inputs[:2] {
					for i := range x.Floats {
						x.Floats[i] *= scale
					}
				}
				v := b.Inputs[2]
				copy(v.Floats, slices.Repeat([]float64{1}, len(v.Floats)))
				for _, dt := range dtypes {
					t.Run(fmt.Sprintf("%s/D%d/%v/%v", b.Name, D, scale, dt), func(t *testing.T) {
						forward, backward := runAttention(t, b, dt, do)
						rows, sum := 0.0, 0.0
						for i, lse := range forward[1].Floats {
							o := forward[0].Floats[i%c.S*c.Hq+i/c.S]
							if math.IsInf(lse, -1) {
								require.Zero(t, o)
								continue
							}
							require.InDelta(t, 1, o, tolerance(dt))
							rows++
						}
						for _, x := range backward[2].Floats {
							sum += x
						}
						require.InDelta(t, 1, sum/rows, tolerance(dt))
					})
				}
			}
		}
	}
}
