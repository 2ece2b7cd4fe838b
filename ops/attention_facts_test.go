package ops_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// TestShiftedPositions: rotary positions count by their differences, so queries and keys that are rotated from position s
// on attend as those from 0 on.
func TestShiftedPositions(t *testing.T) {
	c := newSizes(2, 50, 4, 2, 8, 6)
	q, k, v := c.Tokens(1)
	for _, vm := range slices.Sorted(maps.Keys(vms)) {
		for _, dt := range dtypes {
			attend := func(start int) []float64 {
				return evaluate(t, vm, dt, func(in []*G.Node) (*G.Node, error) {
					q, k := G.Must(ops.RoPE(in[0], 10000, start)), G.Must(ops.RoPE(in[1], 10000, start))
					return ops.SlidingWindow(q, k, in[2], 20)
				}, nil, q, k, v).out
			}
			tol := map[tensor.Dtype]float64{tensor.Float64: 1e-10, tensor.Float32: 1e-5}[dt]
			for _, start := range []int{1, 7, 64} {
				testutil.Within(t, "attention of shifted positions", attend(start), attend(0), tol)
			}
		}
	}
}

// heads returns a with head i taken from head from[i]; the heads are the axis before the last.
func heads(a array, from []int) array {
	n, d := len(from), a.Shape[len(a.Shape)-1]
	at := func(i int) int { return i/(n*d)*(n*d) + from[i/d%n]*d + i%d }
	a.Floats, a.Ints = slices.Clone(a.Floats), slices.Clone(a.Ints)
	old := a
	old.Floats, old.Ints = slices.Clone(a.Floats), slices.Clone(a.Ints)
	for i := range a.Floats {
		a.Floats[i] = old.Floats[at(i)]
	}
	for i := range a.Ints {
		a.Ints[i] = old.Ints[at(i)]
	}
	return a
}

// TestPermutedHeads: groups know nothing of each other, so permuting them, or the heads of a group, permutes all results bit by
// bit, but for the sums over the heads of a group, which change by rounding.
func TestPermutedHeads(t *testing.T) {
	c, p := newSizes(1, 90, 9, 3, 8, 8), ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 16, TopN: 4, Window: 20}
	do := normal("do", 9, c.B, c.S, c.Hq, c.Dv)
	for _, x := range []struct{ query, kv []int }{
		{[]int{6, 7, 8, 0, 1, 2, 3, 4, 5}, []int{2, 0, 1}}, {[]int{1, 2, 0, 5, 3, 4, 8, 6, 7}, []int{0, 1, 2}},
	} {
		for _, b := range opcases.Branches(c, p) {
			f, g := run(t, b, tensor.Float32, do)
			moved := b
			moved.Inputs = []array{heads(b.Inputs[0], x.query)}
			for _, a := range b.Inputs[1:] {
				moved.Inputs = append(moved.Inputs, heads(a, x.kv))
			}
			mf, mg := run(t, moved, tensor.Float32, heads(do, x.query))
			require.Equal(t, heads(f[0], x.query).Floats, mf[0].Floats, b.Name)
			require.Equal(t, heads(g[0], x.query).Floats, mg[0].Floats, b.Name)
			for i := 1; i < 3; i++ {
				if x.kv[0] != 0 {
					require.Equal(t, heads(g[i], x.kv).Floats, mg[i].Floats, b.Name)
				} else {
					testutil.Within(t, b.Name, mg[i].Floats, g[i].Floats, 1e-5)
				}
			}
		}
	}
}

// TestJoinedBatches: a batch of two gives the bits of its two members.
func TestJoinedBatches(t *testing.T) {
	c, p := newSizes(2, 90, 4, 2, 8, 12), ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 16, TopN: 4, Window: 20}
	do := normal("do", 9, c.B, c.S, c.Hq, c.Dv)
	for _, b := range opcases.Branches(c, p) {
		f, g := run(t, b, tensor.Float32, do)
		for i := range c.B {
			one := b
			one.Inputs = nil
			for _, a := range b.Inputs {
				one.Inputs = append(one.Inputs, member(a, i))
			}
			of, og := run(t, one, tensor.Float32, member(do, i))
			for j, x := range append(of, og...) {
				require.Equal(t, member(append(f, g...)[j], i).Floats, x.Floats, "%s: output %d of batch %d", b.Name, j, i)
			}
		}
	}
	q, _, _ := c.Tokens(1)
	kc, vc := c.Compressed(4, p.BlockLen, p.Stride)
	idx := chosen(t, c, p, tensor.Float32, q, kc, vc)
	for i := range c.B {
		require.Equal(t, member(idx, i).Ints, chosen(t, c, p, tensor.Float32, member(q, i), member(kc, i), member(vc, i)).Ints)
	}
}

// member returns one member of a batch.
func member(a array, i int) array {
	n := (len(a.Floats) + len(a.Ints)) / a.Shape[0]
	a.Shape = append([]int{1}, a.Shape[1:]...)
	if a.Ints != nil {
		a.Ints = a.Ints[i*n : (i+1)*n]
	} else {
		a.Floats = a.Floats[i*n : (i+1)*n]
	}
	return a
}
