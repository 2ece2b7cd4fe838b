package ops_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// byName returns one of branches.
func byName(list []branch, name string) branch {
	return list[slices.IndexFunc(list, func(b branch) bool { return b.name == name })]
}

// requireClose compares all outputs and gradients of two ops.
func requireClose(t *testing.T, what string, a, b branch, dt tensor.Dtype, do array) {
	t.Helper()
	af, ab := a.run(t, dt, do)
	bf, bb := b.run(t, dt, do)
	for i, x := range append(af, ab...) {
		testutil.Within(t, fmt.Sprint(what, ": output ", i), x.floats, append(bf, bb...)[i].floats, tolerance(dt))
	}
}

// TestFullCoverageEqualsDense: a window of S or more, and blocks that cover everything, are dense causal attention.
func TestFullCoverageEqualsDense(t *testing.T) {
	for _, S := range []int{1, 63, 64, 130} {
		c := sizes{1, S, 6, 2, 16, 24}
		do := c.normal("do", 9, c.B, c.S, c.Hq, c.Dv)
		for _, dt := range dtypes {
			for _, w := range []int{S, S + 1, math.MaxInt} {
				list := branches(c, ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 16, TopN: 9, Window: w})
				requireClose(t, "window", byName(list, "window"), byName(list, "dense"), dt, do)
				requireClose(t, "selected", byName(list, "selected"), byName(list, "dense"), dt, do)
			}
		}
	}
}

// TestCompressedOfTokensEqualsDense: compression blocks of one token are the tokens, l = d = 1.
func TestCompressedOfTokensEqualsDense(t *testing.T) {
	for _, S := range []int{1, 65, 130} {
		c := sizes{2, S, 4, 2, 8, 8}
		do := c.normal("do", 9, c.B, c.S, c.Hq, c.Dv)
		for _, dt := range dtypes {
			list := branches(c, ops.Params{BlockLen: 1, Stride: 1, SelectBlock: 16, TopN: 4, Window: 4})
			cmp := byName(list, "compressed")
			dense := byName(list, "dense")
			dense.inputs = cmp.inputs
			f, b := cmp.run(t, dt, do)
			df, db := dense.run(t, dt, do)
			for i, x := range append(f, b...) {
				require.Equal(t, append(df, db...)[i].floats, x.floats)
			}
		}
	}
}

// TestFutureLeavesThePast: tokens from t on change no bit of what earlier queries get, chosen blocks included.
func TestFutureLeavesThePast(t *testing.T) {
	p := ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 16, TopN: 4, Window: 20}
	for _, S := range []int{7, 8, 9, 15, 16, 17, 19, 20, 21, 39, 40, 41, 130} { // around l, l', w and 2w
		c := sizes{2, S, 4, 2, 8, 8}
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
	c := sizes{2, 50, 4, 2, 8, 6}
	q, k, v := c.tokens(1)
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
	q, k, v := c.tokens(1)
	kc, vc := c.compressed(4, p.BlockLen, p.Stride)
	if perturb {
		for _, a := range []array{q, k, v, kc, vc} {
			first := t0
			if a.name == "kc" || a.name == "vc" {
				first = ops.NumCompressed(t0, p.BlockLen, p.Stride) // the blocks within the first t0 tokens
			}
			n := a.shape[2] * a.shape[3]
			for i := range a.floats {
				if i/n%a.shape[1] >= first {
					a.floats[i] = 100 - 3*a.floats[i]
				}
			}
		}
	}
	idx := chosen(t, c, p, dt, q, kc, vc)
	list := branches(c, p)
	byName(list, "window").set(q, k, v)
	byName(list, "dense").set(q, k, v)
	byName(list, "compressed").set(q, kc, vc)
	byName(list, "selected").set(q, k, v, idx)
	for _, b := range list {
		out := outputs(t, b.spec, dt, b.inputs...)
		var seen []any
		for i, x := range out[0].floats {
			if i/(c.Hq*c.Dv)%c.S < t0 {
				seen = append(seen, x)
			}
		}
		for i, x := range out[1].floats {
			if i%c.S < t0 {
				seen = append(seen, x)
			}
		}
		past = append(past, seen)
	}
	var blocks []any
	for i, j := range idx.ints {
		if i/(c.Hkv*p.TopN)%c.S < t0 {
			blocks = append(blocks, j)
		}
	}
	return append(past, blocks)
}

// set replaces the inputs.
func (b branch) set(inputs ...array) { copy(b.inputs, inputs) }

// heads returns a with head i taken from head from[i]; the heads are the axis before the last.
func heads(a array, from []int) array {
	n, d := len(from), a.shape[len(a.shape)-1]
	at := func(i int) int { return i/(n*d)*(n*d) + from[i/d%n]*d + i%d }
	a.floats, a.ints = slices.Clone(a.floats), slices.Clone(a.ints)
	old := a
	old.floats, old.ints = slices.Clone(a.floats), slices.Clone(a.ints)
	for i := range a.floats {
		a.floats[i] = old.floats[at(i)]
	}
	for i := range a.ints {
		a.ints[i] = old.ints[at(i)]
	}
	return a
}

// TestPermutedGroups: groups know nothing of each other, so that permuting them permutes all results bit by bit.
func TestPermutedGroups(t *testing.T) {
	c, p := sizes{1, 90, 6, 3, 8, 8}, ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 16, TopN: 4, Window: 20}
	kv, query := []int{2, 0, 1}, []int{4, 5, 0, 1, 2, 3}
	do := c.normal("do", 9, c.B, c.S, c.Hq, c.Dv)
	for _, b := range branches(c, p) {
		f, g := b.run(t, tensor.Float32, do)
		moved := b
		moved.inputs = []array{heads(b.inputs[0], query)}
		for _, a := range b.inputs[1:] {
			moved.inputs = append(moved.inputs, heads(a, kv))
		}
		mf, mg := moved.run(t, tensor.Float32, heads(do, query))
		require.Equal(t, heads(f[0], query).floats, mf[0].floats, b.name)
		require.Equal(t, heads(g[0], query).floats, mg[0].floats, b.name)
		require.Equal(t, heads(g[1], kv).floats, mg[1].floats, b.name)
		require.Equal(t, heads(g[2], kv).floats, mg[2].floats, b.name)
	}
}

// TestPermutedHeads: the heads of a group share its keys; permuting them permutes their rows bit by bit, and changes the
// sums over them only by rounding.
func TestPermutedHeads(t *testing.T) {
	c, p := sizes{1, 90, 6, 2, 8, 8}, ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 16, TopN: 4, Window: 20}
	query := []int{1, 2, 0, 5, 3, 4}
	do := c.normal("do", 9, c.B, c.S, c.Hq, c.Dv)
	for _, b := range branches(c, p) {
		f, g := b.run(t, tensor.Float32, do)
		moved := b
		moved.inputs = append([]array{heads(b.inputs[0], query)}, b.inputs[1:]...)
		mf, mg := moved.run(t, tensor.Float32, heads(do, query))
		require.Equal(t, heads(f[0], query).floats, mf[0].floats, b.name)
		require.Equal(t, heads(g[0], query).floats, mg[0].floats, b.name)
		testutil.Within(t, b.name+": dk", mg[1].floats, g[1].floats, 1e-5)
		testutil.Within(t, b.name+": dv", mg[2].floats, g[2].floats, 1e-5)
	}
}

// TestJoinedBatches: a batch of two gives the bits of its two members.
func TestJoinedBatches(t *testing.T) {
	c, p := sizes{2, 90, 4, 2, 8, 12}, ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 16, TopN: 4, Window: 20}
	do := c.normal("do", 9, c.B, c.S, c.Hq, c.Dv)
	for _, b := range branches(c, p) {
		f, g := b.run(t, tensor.Float32, do)
		for i := range c.B {
			one := b
			one.inputs = nil
			for _, a := range b.inputs {
				one.inputs = append(one.inputs, member(a, i))
			}
			of, og := one.run(t, tensor.Float32, member(do, i))
			for j, x := range append(of, og...) {
				require.Equal(t, member(append(f, g...)[j], i).floats, x.floats, "%s: output %d of batch %d", b.name, j, i)
			}
		}
	}
	q, _, _ := c.tokens(1)
	kc, vc := c.compressed(4, p.BlockLen, p.Stride)
	idx := chosen(t, c, p, tensor.Float32, q, kc, vc)
	for i := range c.B {
		require.Equal(t, member(idx, i).ints, chosen(t, c, p, tensor.Float32, member(q, i), member(kc, i), member(vc, i)).ints)
	}
}

// member returns one member of a batch.
func member(a array, i int) array {
	n := (len(a.floats) + len(a.ints)) / a.shape[0]
	a.shape = append([]int{1}, a.shape[1:]...)
	if a.ints != nil {
		a.ints = a.ints[i*n : (i+1)*n]
	} else {
		a.floats = a.floats[i*n : (i+1)*n]
	}
	return a
}
