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

	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
)

// TestRoPEShiftedPositions: only differences of rotary positions matter, so positions from s on give the same attention
// as positions from 0 on.
func TestRoPEShiftedPositions(t *testing.T) {
	c := opcases.NewDims(2, 50, 4, 2, 8, 6)
	q, k, v := c.Tokens(1)
	for _, vm := range slices.Sorted(maps.Keys(vms)) {
		for _, dt := range dtypes {
			attend := func(start int) []float64 {
				return runGraph(t, vm, dt, func(in []*G.Node) (*G.Node, error) {
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

// heads returns a with its heads permuted: head i is head from[i] of a. The heads are the axis before the last.
func heads(a array, from []int) array {
	n, d := len(from), a.Shape[len(a.Shape)-1]
	at := func(i int) int { return i/(n*d)*(n*d) + from[i/d%n]*d + i%d }
	old := a
	a.Floats, a.Ints = slices.Clone(a.Floats), slices.Clone(a.Ints)
	for i := range a.Floats {
		a.Floats[i] = old.Floats[at(i)]
	}
	for i := range a.Ints {
		a.Ints[i] = old.Ints[at(i)]
	}
	return a
}

// TestAttentionPermutedHeads: groups do not depend on each other, so permuting the groups, or the heads of a group,
// permutes all results without changing bits. Only sums over the heads of a group may change by rounding.
func TestAttentionPermutedHeads(t *testing.T) {
	c, p := opcases.NewDims(1, 90, 9, 3, 8, 8), ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 16, TopN: 4, Window: 20}
	do := normal("do", 9, c.B, c.S, c.Hq, c.Dv)
	for _, x := range []struct{ query, kv []int }{
		{[]int{6, 7, 8, 0, 1, 2, 3, 4, 5}, []int{2, 0, 1}}, {[]int{1, 2, 0, 5, 3, 4, 8, 6, 7}, []int{0, 1, 2}},
	} {
		for _, b := range opcases.Branches(c, p) {
			f, g := runAttention(t, b, tensor.Float32, do)
			moved := b
			moved.Inputs = []array{heads(b.Inputs[0], x.query)}
			for _, a := range b.Inputs[1:] {
				moved.Inputs = append(moved.Inputs, heads(a, x.kv))
			}
			mf, mg := runAttention(t, moved, tensor.Float32, heads(do, x.query))
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

// TestAttentionBatchEqualsMembers: a batch of two gives the bits of its two members.
func TestAttentionBatchEqualsMembers(t *testing.T) {
	c, p := opcases.NewDims(2, 90, 4, 2, 8, 12), ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 16, TopN: 4, Window: 20}
	do := normal("do", 9, c.B, c.S, c.Hq, c.Dv)
	for _, b := range opcases.Branches(c, p) {
		f, g := runAttention(t, b, tensor.Float32, do)
		for i := range c.B {
			one := b
			one.Inputs = nil
			for _, a := range b.Inputs {
				one.Inputs = append(one.Inputs, member(a, i))
			}
			of, og := runAttention(t, one, tensor.Float32, member(do, i))
			for j, x := range append(of, og...) {
				require.Equal(t, member(append(f, g...)[j], i).Floats, x.Floats, "%s: output %d of batch %d", b.Name, j, i)
			}
		}
	}
	q, _, _ := c.Tokens(1)
	kc, vc := c.Compressed(4, p.BlockLen, p.Stride)
	idx := selectBlocks(t, c, p, tensor.Float32, q, kc, vc)
	for i := range c.B {
		require.Equal(t, member(idx, i).Ints, selectBlocks(t, c, p, tensor.Float32, member(q, i), member(kc, i),
			member(vc, i)).Ints)
	}
}

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

// poisons are numbers whose product with 0 is NaN, and a number that is far from the others.
var poisons = []float64{math.Inf(1), math.Inf(-1), math.NaN(), 1000}

// from returns lo, lo+1, ..., hi-1.
func from(lo, hi int) (list []int) {
	for i := lo; i < hi; i++ {
		list = append(list, i)
	}
	return list
}

// poisoned returns a copy of a with poison in the given tokens, which are the second axis.
func poisoned(a array, poison float64, tokens []int) array {
	n := len(a.Floats) / a.Shape[0] / a.Shape[1]
	a.Floats = slices.Clone(a.Floats)
	for b := range a.Shape[0] {
		for _, token := range tokens {
			row := a.Floats[(b*a.Shape[1]+token)*n:][:n]
			for i := range row {
				row[i] = poison
			}
		}
	}
	return a
}

// TestAttentionIgnoresUnseen: NaN, infinities and other numbers in a key and its value reach the queries that see the
// key, and change no bit in the results of other queries. In a query and its do they change no bit in the gradients of
// keys that the query does not see. So no token changes the past.
func TestAttentionIgnoresUnseen(t *testing.T) {
	type list struct{ keys, queries []int }
	p := ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 16, TopN: 4, Window: 20}
	for n, S := range []int{7, 8, 9, 15, 16, 17, 19, 20, 21, 39, 40, 41, 130, 150} { // around l, l', w and 2w
		c := opcases.NewDims(testutil.Tries(t, 1, 2), S, 6, 2, 16, 24)
		do := normal("do", 9, c.B, c.S, c.Hq, c.Dv)
		for _, b := range opcases.Branches(c, p) {
			T := b.Inputs[1].Shape[1]
			lists, values := []list{
				{keys: []int{0}}, {keys: []int{T / 3}}, {keys: []int{T / 2, T - 1}}, {keys: from(T/2, T)}, {keys: from(0, T/2)},
				{queries: []int{0}}, {queries: []int{S / 3}}, {queries: from(S/2, S)},
				{keys: from(T*3/4, T), queries: from(S*3/4, S)},
			}, poisons
			switch some := S != 40 && S != 150; {
			case some && testutil.Full(t):
				lists, values = nil, poisons[2:]
			case some:
				lists, values = nil, poisons[2+n%2:][:1]
			case !testutil.Full(t):
				values = poisons[1:3]
			}
			for _, t0 := range []int{1, 7, 8, 15, 16, 19, 20, 39, S - 1} {
				first := t0
				if b.Name == "compressed" {
					first = ops.NumCompressed(t0, p.BlockLen, p.Stride)
				}
				if t0 < S && S != 150 {
					lists = append(lists, list{keys: from(first, T), queries: from(t0, S)})
				}
			}
			for i, dt := range append(dtypes[:2:2], ops.BFloat16) {
				if !testutil.Full(t) && i != S%2 && S != 40 && (i < 2 || S%3 > 0) {
					continue
				}
				forward, backward := runAttention(t, b, dt, do)
				for _, hidden := range lists {
					for _, poison := range values {
						with := b
						with.Inputs = slices.Clone(b.Inputs)
						with.Inputs[0] = poisoned(b.Inputs[0], poison, hidden.queries)
						with.Inputs[1] = poisoned(b.Inputs[1], poison, hidden.keys)
						with.Inputs[2] = poisoned(b.Inputs[2], poison, hidden.keys)
						f, g := runAttention(t, with, dt, poisoned(do, poison, hidden.queries))
						what := fmt.Sprintf("%s, S = %d, %v, %v in %v", b.Name, S, dt, poison, hidden)
						reached := requireUnseen(t, what, c, b.Mask, hidden.keys, hidden.queries, T, [][2]array{
							{forward[0], f[0]}, {forward[1], f[1]}, {backward[0], g[0]}, {backward[1], g[1]}, {backward[2], g[2]},
						})
						for i, row := range reached { // NaN in k and v, or in q, must reach o
							o := f[0].Floats[i*c.Dv]
							require.False(t, row && !math.IsNaN(o) && math.IsNaN(poison), "%s: o of query %d is %v", what, i, o)
						}
					}
				}
			}
		}
	}
}

// requireUnseen checks that the rows of o, lse, dq, dk and dv that the poison does not reach have the same bits before
// and after. It returns, for each row [B,S,Hq], whether the poison reaches it and its query sees a key.
func requireUnseen(t *testing.T, where string, c dims, mask ref.Mask, keys, queries []int, T int,
	results [][2]array) []bool {
	t.Helper()
	h, rows, poisonedKeys := c.Hq/c.Hkv, make([]bool, c.B*c.S*c.Hq), make([]bool, T)
	for _, k := range keys {
		poisonedKeys[k] = true
	}
	same := func(what string, result [2]array, row, n int) {
		x, y := result[0].Floats[row*n:][:n], result[1].Floats[row*n:][:n]
		if !slices.Equal(x, y) {
			require.Equal(t, x, y, "%s: %s of row %d", where, what, row)
		}
	}
	for b := range c.B {
		for g := range c.Hkv {
			reachedKeys := make([]bool, T)
			for q := range c.S {
				var seen []int
				for k := range T {
					if mask(b, g, q, k) {
						seen = append(seen, k)
					}
				}
				if !slices.ContainsFunc(seen, func(k int) bool { return poisonedKeys[k] }) &&
					!slices.Contains(queries, q) {
					for head := g * h; head < (g+1)*h; head++ {
						row := (b*c.S+q)*c.Hq + head
						same("o", results[0], row, c.Dv)
						same("lse", results[1], (b*c.Hq+head)*c.S+q, 1)
						same("dq", results[2], row, c.D)
					}
					continue
				}
				for _, k := range seen {
					reachedKeys[k] = true
				}
				for head := g * h; head < (g+1)*h; head++ {
					rows[(b*c.S+q)*c.Hq+head] = len(seen) > 0
				}
			}
			for k, reached := range reachedKeys {
				if !reached {
					same("dk", results[3], (b*T+k)*c.Hkv+g, c.D)
					same("dv", results[4], (b*T+k)*c.Hkv+g, c.Dv)
				}
			}
		}
	}
	return rows
}

// TestSelectBlocksIgnoresUnseen: the blocks that a query selects do not depend on compressed keys that it does not see,
// nor on later queries.
func TestSelectBlocksIgnoresUnseen(t *testing.T) {
	p := ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 16, TopN: 4, Window: 20}
	for _, S := range []int{8, 15, 16, 17, 40, 130, 150} {
		c := opcases.NewDims(1, S, 6, 2, 16, 16)
		q, _, _ := c.Tokens(1)
		kc, vc := c.Compressed(4, p.BlockLen, p.Stride)
		for _, dt := range dtypes {
			want := selectBlocks(t, c, p, dt, q, kc, vc).Ints
			for i, poison := range poisons {
				for first := range kc.Shape[1] {
					if !testutil.Full(t) && S > 100 && i != first%4 {
						continue
					}
					end := first*p.Stride + p.BlockLen - 1 // end of the queries that do not see block first
					idx := selectBlocks(t, c, p, dt, poisoned(q, poison, from(end, S)),
						poisoned(kc, poison, from(first, kc.Shape[1])), vc).Ints
					n := end * c.Hkv * p.TopN
					require.Equal(t, want[:n], idx[:n])
				}
			}
		}
	}
}

// TestCompressIgnoresOtherTokens: NaN and infinities in a token do not change the blocks that do not cover it. In the
// gradient of a block they do not change the gradients of tokens that it does not cover.
func TestCompressIgnoresOtherTokens(t *testing.T) {
	const B, S, H, D, l, d, hidden, bad = 2, 45, 2, 5, 8, 4, 7, 20
	x, pe := normal("x", 1, B, S, H, D), normal("pe", 2, l, D)
	w1, w2 := normal("w1", 3, hidden, l*D), normal("w2", 4, D, hidden)
	dy := normal("dy", 5, B, ops.NumCompressed(S, l, d), H, D)
	for _, dt := range dtypes {
		run := func(x, dy array) (blocks, tokens []array) {
			mean := runSpec(t, compress.Mean{BlockLen: l, Stride: d}, dt, x)
			mlp := runSpec(t, compress.MLP{BlockLen: l, Stride: d}, dt, x, pe, w1, w2)
			dmean := runSpec(t, compress.MeanGrad{BlockLen: l, Stride: d, Tokens: S}, dt, dy)
			dmlp := runSpec(t, compress.MLPGrad{BlockLen: l, Stride: d}, dt, x, pe, w1, w2, mlp[1], dy)
			return append(mean, mlp...), append(dmean, dmlp[0])
		}
		blocks, tokens := run(x, dy)
		for _, poison := range poisons {
			var covering []int
			for i := range dy.Shape[1] {
				if i*d <= bad && bad < i*d+l {
					covering = append(covering, i)
				}
			}
			pb, pt := run(poisoned(x, poison, []int{bad}), poisoned(dy, poison, covering))
			compare := func(want, got array, touched func(int) bool) {
				n := len(want.Floats) / B / want.Shape[1]
				for i := range B * want.Shape[1] {
					if !touched(i % want.Shape[1]) {
						require.Equal(t, want.Floats[i*n:][:n], got.Floats[i*n:][:n])
					}
				}
			}
			for i := range blocks {
				compare(blocks[i], pb[i], func(block int) bool { return slices.Contains(covering, block) })
			}
			for i := range tokens {
				compare(tokens[i], pt[i], func(tok int) bool {
					return slices.ContainsFunc(covering, func(i int) bool { return i*d <= tok && tok < i*d+l })
				})
			}
		}
	}
}
