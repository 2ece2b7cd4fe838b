package ops_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// TestQueriesOfPart: with WithStart each op gives the rows that it gives for all queries, of any run of them, in the same
// bits. The gradients of the keys and values of all runs of a sequence add up to those of the whole. The bits of selected
// attention, which has two kernels, do not depend on later tokens.
func TestQueriesOfPart(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 46))
	types := []tensor.Dtype{tensor.Float32, tensor.Float64}
	if graph.NewCPU(1).Device().Half {
		types = append(types, ops.BFloat16)
	}
	for i := range testutil.Tries(t, 30, 500) {
		stride := 1 + r.IntN(4)
		p := ops.Params{Stride: stride, BlockLen: stride * (1 + r.IntN(3)), TopN: 3 + r.IntN(3), Window: 1 + r.IntN(60)}
		p.SelectBlock = p.BlockLen * (1 + r.IntN(2))
		tokens, groups := 1+r.IntN([]int{40, 200, 800}[r.IntN(3)]), 1+r.IntN(2)
		B, heads, D, Dv := 1+r.IntN(2), groups*(1+r.IntN(3)), 2*(1+r.IntN(9)), 1+r.IntN(9)
		dt := types[r.IntN(len(types))]
		name := fmt.Sprintf("case %d: %v, %d tokens, %d x %d of %d heads of %d and %d, %v", i, p, tokens, B, groups, heads, D,
			Dv, dt)
		c := opcases.NewDims(B, tokens, heads, groups, D, Dv)
		q, k, v := c.Tokens(uint64(i))
		kc, vc := c.Compressed(uint64(i), p.BlockLen, p.Stride)
		do := opcases.Normal("do", uint64(i)+7, B, tokens, heads, Dv)
		runs := cutQueries(r, B, tokens)
		idx := selectBlocks(t, c, p, dt, q, kc, vc)

		for _, op := range []attention.Forward{attention.SlidingWindow{Window: p.Window},
			attention.Compressed{BlockLen: p.BlockLen, Stride: p.Stride}, attention.Selected{SelectBlock: p.SelectBlock}} {
			in, cutIn := []array{q, k, v}, func(run opcases.Queries) []array { return []array{run.Of(q, 1), k, v} }
			switch op.(type) {
			case attention.Compressed:
				in, cutIn = []array{q, kc, vc}, func(run opcases.Queries) []array { return []array{run.Of(q, 1), kc, vc} }
			case attention.Selected:
				in = append(in, idx)
				cutIn = func(run opcases.Queries) []array { return []array{run.Of(q, 1), k, v, run.Of(idx, 1)} }
			}
			o := runSpec(t, op, dt, in...)
			grads := runSpec(t, gradOf(op), dt, append(slices.Clone(in), o[0], o[1], do)...)
			sums := [2][]float64{make([]float64, len(grads[1].Floats)), make([]float64, len(grads[2].Floats))}
			for _, run := range runs {
				part := append(cutIn(run), run.Input())
				got := runSpec(t, op, dt, part...)
				require.Equal(t, run.Of(o[0], 1).Floats, got[0].Floats, "%s: %s, o of %v", name, op.Name(), run)
				require.Equal(t, run.Of(o[1], 2).Floats, got[1].Floats, "%s: %s, lse of %v", name, op.Name(), run)
				gots := runSpec(t, gradOf(op), dt, append(part, run.Of(o[0], 1), run.Of(o[1], 2), run.Of(do, 1))...)
				requireNear(t, dt, run.Of(grads[0], 1).Floats, gots[0].Floats, "%s: %s, dq of %v", name, op.Name(), run)
				for i := range sums {
					for j, x := range gots[1+i].Floats {
						sums[i][j] += x
					}
				}
			}
			requireNear(t, dt, grads[1].Floats, sums[0], "%s: %s, dk", name, op.Name())
			requireNear(t, dt, grads[2].Floats, sums[1], "%s: %s, dv", name, op.Name())
		}
		requireNoLater(t, r, c, p, dt, q, k, v, idx)
		lse := runSpec(t, attention.Compressed{BlockLen: p.BlockLen, Stride: p.Stride}, dt, q, kc, vc)[1]
		rope := pointwise.RoPE{Base: 10000}
		rotated := runSpec(t, rope, dt, q)[0]
		for _, run := range runs {
			got := runSpec(t, attention.SelectBlocks{Params: p}, dt, run.Of(q, 1), kc, run.Of(lse, 2), run.Input())[0]
			require.Equal(t, run.Of(idx, 1).Ints, got.Ints, "%s: blocks of %v", name, run)
			require.Equal(t, run.Of(rotated, 1).Floats, runSpec(t, rope, dt, run.Of(q, 1), run.Input())[0].Floats, name)
		}
	}
}

// requireNoLater checks that selected attention has the bits of a sequence that ends early.
func requireNoLater(t *testing.T, r *rand.Rand, c dims, p ops.Params, dt tensor.Dtype, q, k, v, idx array) {
	t.Helper()
	op, first := attention.Selected{SelectBlock: p.SelectBlock}, opcases.Queries{Start: make([]int32, c.B), N: 1 + r.IntN(c.S)}
	whole := runSpec(t, op, dt, q, k, v, idx)
	got := runSpec(t, op, dt, first.Of(q, 1), first.Of(k, 1), first.Of(v, 1), first.Of(idx, 1))
	require.Equal(t, first.Of(whole[0], 1).Floats, got[0].Floats, "o of the first %d tokens", first.N)
	require.Equal(t, first.Of(whole[1], 2).Floats, got[1].Floats, "lse of the first %d tokens", first.N)
}

// cutQueries cuts the tokens of each row into runs of the same lengths, at places of their own.
func cutQueries(r *rand.Rand, batch, tokens int) (runs []opcases.Queries) {
	var lengths []int
	for left := tokens; left > 0; left -= lengths[len(lengths)-1] {
		lengths = append(lengths, 1+r.IntN(left))
	}
	starts := make([][]int32, len(lengths))
	for range batch {
		at := int32(0)
		for _, i := range r.Perm(len(lengths)) {
			starts[i] = append(starts[i], at)
			at += int32(lengths[i])
		}
	}
	for i, n := range lengths {
		runs = append(runs, opcases.Queries{Start: starts[i], N: n})
	}
	return runs
}

func gradOf(op attention.Forward) spec.Spec {
	switch op := op.(type) {
	case attention.SlidingWindow:
		return attention.SlidingWindowGrad{Forward: op}
	case attention.Compressed:
		return attention.CompressedGrad{Forward: op}
	case attention.Selected:
		return attention.SelectedGrad{Forward: op}
	}
	panic("not reached")
}

// requireNear compares results to the rounding of dt: in bf16 each part is rounded before it is added.
func requireNear(t *testing.T, dt tensor.Dtype, want, got []float64, text string, args ...any) {
	t.Helper()
	most := map[tensor.Dtype]float64{tensor.Float32: 2e-5, tensor.Float64: 1e-12, ops.BFloat16: 0.05}[dt]
	for i := range want {
		if d := math.Abs(want[i] - got[i]); !(d < most*max(1, math.Abs(want[i]))) {
			require.Failf(t, "other numbers", "element %d is %v, want %v: "+text, append([]any{i, got[i], want[i]}, args...)...)
		}
	}
}

// TestStartRefuses: a start must fit the op and the run's keys.
func TestStartRefuses(t *testing.T) {
	g := G.NewGraph()
	x := func(name string, shape ...int) *G.Node {
		return G.NewTensor(g, tensor.Float32, len(shape), G.WithName(name), G.WithShape(shape...))
	}
	start := func(n int) *G.Node {
		return G.NewVector(g, tensor.Int32, G.WithName(fmt.Sprint("start", n)), G.WithShape(n))
	}
	q, k := x("q", 2, 3, 2, 4), x("k", 2, 8, 1, 4)
	for want, err := range map[string]error{
		"start has shape":        testutil.Err(ops.SlidingWindow(q, k, k, 4, ops.WithStart(start(3)))),
		"k has 8 rows, want 3":   testutil.Err(ops.SlidingWindow(q, k, k, 4)),
		"k has 3 rows, want 8":   testutil.Err(ops.SlidingWindow(x("q2", 2, 8, 2, 4), x("k2", 2, 3, 1, 4), x("v2", 2, 3, 1, 4), 4, ops.WithStart(start(2)))),
		"excludes WithDocuments": testutil.Err(ops.RoPE(q, 1e4, 0, ops.WithStart(start(2)), ops.WithDocuments(testutil.Must(ops.DocumentTable(start(5), 2, 3, ops.Params{}))(t)))),
		"compress mean: ":        testutil.Err(ops.CompressMean(k, ops.Params{BlockLen: 2, Stride: 1}, ops.WithStart(start(2)))),
	} {
		require.ErrorContains(t, err, want)
	}
	for _, bad := range []int32{-1, 6} { // 3 queries, 8 keys
		run := opcases.Queries{Start: []int32{5, bad}, N: 3}
		keys := opcases.Normal("k", 1, 2, 8, 1, 4)
		for _, op := range []spec.Spec{attention.SlidingWindow{Window: 2}, attention.Compressed{BlockLen: 1, Stride: 1}} {
			x := bindSpec(t, op, tensor.Float32, 1, opcases.Normal("q", 1, 2, 3, 2, 4), keys, keys, run.Input())
			err := cpu.NewTeam(1).Run(&x.kernel, x.mem)
			require.ErrorContains(t, err, fmt.Sprintf("start of row 1 is %d, want 0 to 5", bad))
			require.ErrorAs(t, err, new(*spec.ValueError))
		}
	}
}
