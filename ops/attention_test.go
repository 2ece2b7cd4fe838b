package ops_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// TestAttentionOfOneNode: a node that is query, key and value at once gets the sum of its gradients, while its LSE is read.
func TestAttentionOfOneNode(t *testing.T) {
	c, p := newSizes(2, 37, 3, 3, 8, 8), ops.Params{BlockLen: 1, Stride: 1, SelectBlock: 4, TopN: 4, Window: 9}
	weights := normal("weights", 9, c.B, c.S, c.Hq, c.Dv)
	x, _, _ := c.Tokens(1)
	for _, b := range opcases.Branches(c, p) {
		X := x.Tensor()
		o, lse := ref.Attention(X, X, X, b.Mask)
		dq, dk, dv := ref.AttentionGrad(X, X, X, o, weights.Tensor(), b.Mask)
		for vm := range vms {
			var read G.Value
			res := evaluate(t, vm, tensor.Float64, func(in []*G.Node) (*G.Node, error) {
				o, err := b.Build(append([]*G.Node{in[0], in[0], in[0]}, in[1:]...))
				if err == nil {
					G.Read(G.Must(ops.LSE(o)), &read)
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

// TestAttentionInfiniteLogits: logits of -Inf weigh nothing, before finite ones too, and a row of nothing else is empty.
func TestAttentionInfiniteLogits(t *testing.T) {
	c, p := newSizes(1, 1100, 2, 1, 4, 3), ops.Params{BlockLen: 1, Stride: 1, SelectBlock: 8, TopN: 4, Window: 600}
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
				forward, backward := run(t, b, dt, do)
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
		var do func(spec ops.Spec, in []array) []array
		do = func(spec ops.Spec, in []array) []array {
			x := bind(t, spec, tensor.Float32, 1, in...)
			run := func() { require.NoError(t, team.Run(&x.kernel, x.mem)) }
			run()
			require.Zero(t, testing.AllocsPerRun(2, run), spec.Name())
			list = append(list, x.kernel.WorkBytes(1))
			out := x.read()
			if _, ok := spec.(ops.CompressedAttentionOp); ok {
				do(ops.SelectBlocksOp{Params: p}, []array{in[0], in[1], out[1]})
			}
			return out
		}
		for _, b := range opcases.Branches(newSizes(1, S, 2, 1, 8, 8), p) {
			calls(t, b, nil, do)
		}
		return list
	}
	long := bytes(4096)
	require.Len(t, long, 9)
	for i, short := range bytes(2048) {
		require.LessOrEqual(t, float64(long[i]), 2.01*float64(short), "call %d", i)
	}
}
