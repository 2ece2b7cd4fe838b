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

// TestFutureLeavesThePast: tokens from t on change no bit of what earlier queries get, chosen blocks included.
func TestFutureLeavesThePast(t *testing.T) {
	p := ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 16, TopN: 4, Window: 20}
	for _, S := range []int{7, 8, 9, 15, 16, 17, 19, 20, 21, 39, 40, 41, 130} { // around l, l', w and 2w
		c := newSizes(2, S, 4, 2, 8, 8)
		for _, t0 := range []int{1, 7, 8, 15, 16, 19, 20, 39, S - 1} {
			if t0 >= S {
				continue
			}
			for _, dt := range dtypes {
				a := pastOf(t, c, p, dt, t0, false)
				b := pastOf(t, c, p, dt, t0, true)
				require.Equal(t, a, b, "S = %d, t = %d, %v", S, t0, dt)
			}
		}
	}
}

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

// pastOf returns what all branches give to the queries before t0, after perturbing, if asked, everything from t0 on. The
// compressed keys are perturbed where their block reaches to t0 or further.
func pastOf(t *testing.T, c sizes, p ops.Params, dt tensor.Dtype, t0 int, perturb bool) (past [][]any) {
	q, k, v := c.Tokens(1)
	kc, vc := c.Compressed(4, p.BlockLen, p.Stride)
	if perturb {
		for _, a := range []array{q, k, v, kc, vc} {
			first := t0
			if a.Name == "kc" || a.Name == "vc" {
				first = ops.NumCompressed(t0, p.BlockLen, p.Stride) // the blocks within the first t0 tokens
			}
			n := a.Shape[2] * a.Shape[3]
			for i := range a.Floats {
				if i/n%a.Shape[1] >= first {
					a.Floats[i] = 100 - 3*a.Floats[i]
				}
			}
		}
	}
	idx := chosen(t, c, p, dt, q, kc, vc)
	list := opcases.Branches(c, p)
	for i, inputs := range [][]array{{q, k, v}, {q, k, v}, {q, kc, vc}, {q, k, v, idx}} {
		out := outputs(t, specs(t, list[i])[0], dt, inputs...)
		var seen []any
		for i, x := range out[0].Floats {
			if i/(c.Hq*c.Dv)%c.S < t0 {
				seen = append(seen, x)
			}
		}
		for i, x := range out[1].Floats {
			if i%c.S < t0 {
				seen = append(seen, x)
			}
		}
		past = append(past, seen)
	}
	var blocks []any
	for i, j := range idx.Ints {
		if i/(c.Hkv*p.TopN)%c.S < t0 {
			blocks = append(blocks, j)
		}
	}
	return append(past, blocks)
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

// TestPermutedGroups: groups know nothing of each other, so that permuting them permutes all results bit by bit.
func TestPermutedGroups(t *testing.T) {
	c, p := newSizes(1, 90, 6, 3, 8, 8), ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 16, TopN: 4, Window: 20}
	kv, query := []int{2, 0, 1}, []int{4, 5, 0, 1, 2, 3}
	do := normal("do", 9, c.B, c.S, c.Hq, c.Dv)
	for _, b := range opcases.Branches(c, p) {
		f, g := run(t, b, tensor.Float32, do)
		moved := b
		moved.Inputs = []array{heads(b.Inputs[0], query)}
		for _, a := range b.Inputs[1:] {
			moved.Inputs = append(moved.Inputs, heads(a, kv))
		}
		mf, mg := run(t, moved, tensor.Float32, heads(do, query))
		require.Equal(t, heads(f[0], query).Floats, mf[0].Floats, b.Name)
		require.Equal(t, heads(g[0], query).Floats, mg[0].Floats, b.Name)
		require.Equal(t, heads(g[1], kv).Floats, mg[1].Floats, b.Name)
		require.Equal(t, heads(g[2], kv).Floats, mg[2].Floats, b.Name)
	}
}

// TestPermutedHeads: the heads of a group share its keys; permuting them permutes their rows bit by bit, and changes the
// sums over them only by rounding.
func TestPermutedHeads(t *testing.T) {
	c, p := newSizes(1, 90, 6, 2, 8, 8), ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 16, TopN: 4, Window: 20}
	query := []int{1, 2, 0, 5, 3, 4}
	do := normal("do", 9, c.B, c.S, c.Hq, c.Dv)
	for _, b := range opcases.Branches(c, p) {
		f, g := run(t, b, tensor.Float32, do)
		moved := b
		moved.Inputs = append([]array{heads(b.Inputs[0], query)}, b.Inputs[1:]...)
		mf, mg := run(t, moved, tensor.Float32, heads(do, query))
		require.Equal(t, heads(f[0], query).Floats, mf[0].Floats, b.Name)
		require.Equal(t, heads(g[0], query).Floats, mg[0].Floats, b.Name)
		testutil.Within(t, b.Name+": dk", mg[1].Floats, g[1].Floats, 1e-5)
		testutil.Within(t, b.Name+": dv", mg[2].Floats, g[2].Floats, 1e-5)
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
