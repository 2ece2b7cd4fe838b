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
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
)

// goldenArray returns a float tensor of a golden, named for a graph.
func goldenArray(t *testing.T, g testutil.Golden, name string) array {
	return array{Name: name, Shape: g.Shape(t, name), Floats: g.F64(t, name)}
}

// TestNSAMatchesGoldens: all three branches with compression, selection and gates in one graph, and each branch alone,
// with the gradients of all inputs. The graph in float64 of a built-in golden selects the blocks itself. All others
// take those of the golden: rounding may change the order of scores that nearly tie.
func TestNSAMatchesGoldens(t *testing.T) {
	testutil.EachGolden(t, testutil.Ops, func(t *testing.T, g testutil.Golden) {
		c := g.Config
		p := opcases.ParamsOf(c)
		q, gates, r := goldenArray(t, g, "q"), goldenArray(t, g, "gates"), g.F64(t, "r")
		idx := array{Name: "idx", Shape: g.Shape(t, "idx"), Ints: g.I32(t, "idx")}
		branches := []struct {
			name  string
			build func(q, k, v, idx *G.Node) (*G.Node, error)
		}{
			{"cmp", func(q, k, v, _ *G.Node) (*G.Node, error) {
				kc, vc := G.Must(ops.CompressMean(k, p)), G.Must(ops.CompressMean(v, p))
				return ops.CompressedAttention(q, kc, vc, p)
			}},
			{"sel", func(q, k, v, idx *G.Node) (*G.Node, error) { return ops.SelectedAttention(q, k, v, idx, p.SelectBlock) }},
			{"win", func(q, k, v, _ *G.Node) (*G.Node, error) { return ops.SlidingWindow(q, k, v, p.Window) }},
		}
		inputs := []array{q, gates, idx}
		for _, b := range branches {
			inputs = append(inputs, goldenArray(t, g, "k_"+b.name), goldenArray(t, g, "v_"+b.name))
		}
		keys := runSpec(t, compress.Mean{BlockLen: p.BlockLen, Stride: p.Stride}, tensor.Float64, inputs[3])[0]
		opcases.CompareSelection(t, g, selectBlocks(t, opcases.NewDims(c.B, c.S, c.Hq, c.Hkv, c.D, c.Dv), p,
			tensor.Float64, q, keys, keys).Ints, 1e-12)
		for vm := range vms {
			for _, dt := range dtypes {
				t.Run(fmt.Sprint(vm, "/", dt), func(t *testing.T) {
					matches := func(name string, got []float64) { g.Within(t, name, got, tolerance(dt)) }
					res := runGraph(t, vm, dt, func(in []*G.Node) (*G.Node, error) {
						q, idx := in[0], in[2]
						compressed := G.Must(branches[0].build(q, in[3], in[4], nil))
						if dt == tensor.Float64 && g.BuiltIn {
							kc := G.Must(ops.CompressMean(in[3], p))
							idx = G.Must(ops.SelectBlocks(q, kc, G.Must(attention.LSE(compressed)), p))
						}
						selected, window := G.Must(branches[1].build(q, in[5], in[6], idx)),
							G.Must(branches[2].build(q, in[7], in[8], nil))
						return ops.GatedSum(in[1], compressed, selected, window)
					}, r, inputs...)
					matches("o", res.out)
					for name, grad := range res.grads {
						matches("grad_"+name, grad)
					}

					dq := make([]float64, len(q.Floats))
					for i, b := range branches {
						do := make([]float64, len(r))
						for j := range do {
							do[j] = gates.Floats[j/c.Dv*3+i] * r[j]
						}
						k, v := inputs[3+2*i], inputs[4+2*i]
						var lse G.Value
						res := runGraph(t, vm, dt, func(in []*G.Node) (*G.Node, error) {
							o, err := b.build(in[0], in[1], in[2], in[3])
							if err == nil {
								G.Read(G.Must(attention.LSE(o)), &lse)
							}
							return o, err
						}, do, q, k, v, idx)
						matches("o_"+b.name, res.out)
						matches("lse_"+b.name, testutil.Floats(t, lse.Data()))
						matches("grad_"+k.Name, res.grads[k.Name])
						matches("grad_"+v.Name, res.grads[v.Name])
						cpu.Add(dq, dq, res.grads[q.Name])
					}
					matches("grad_q", dq)
				})
			}
		}
	})
}

// TestCompressedAttentionOfTokens: with blocks of one token compressed attention has the bits of dense attention.
func TestCompressedAttentionOfTokens(t *testing.T) {
	c := opcases.NewDims(2, 300, 6, 2, 16, 12)
	list := opcases.Branches(c, ops.Params{BlockLen: 1, Stride: 1, SelectBlock: 4, TopN: 3, Window: 1})
	dense, compressed, do := list[1], list[2], normal("do", 9, c.B, c.S, c.Hq, c.Dv)
	compressed.Inputs = dense.Inputs
	for _, dt := range dtypes {
		o, grads := runAttention(t, dense, dt, do)
		oc, gradsc := runAttention(t, compressed, dt, do)
		require.Equal(t, o, oc)
		require.Equal(t, grads, gradsc)
	}
}

// TestSelectBlocksTies: of equal scores the lower index wins. All keys are equal, so all blocks that are fully visible
// have equal scores.
func TestSelectBlocksTies(t *testing.T) {
	c, p := opcases.NewDims(1, 64, 2, 1, 4, 4), ops.Params{BlockLen: 4, Stride: 4, SelectBlock: 4, TopN: 6, Window: 1}
	q, _, _ := c.Tokens(1)
	kc, vc := c.Compressed(4, 4, 4)
	clear(kc.Floats)
	for _, dt := range dtypes {
		idx := selectBlocks(t, c, p, dt, q, kc, vc)
		require.Equal(t, []int32{0, 1, 2, 3, 14, 15}, idx.Ints[63*6:])
		require.Equal(t, []int32{0, 1, 2, 3, 6, 7}, idx.Ints[31*6:32*6])
		require.Equal(t, []int32{0, 1, 2, -1, -1, -1}, idx.Ints[11*6:12*6])
	}
}

// TestSelectBlocksMirroredTies: if all keys are equal, the score of a block is proportional to the number of tokens
// that it shares with visible compression blocks. With l > l' + d the first blocks lack terms that the last ones have,
// and the other way round: where their scores are equal, so are the bits.
func TestSelectBlocksMirroredTies(t *testing.T) {
	c := opcases.NewDims(1, 100, 3, 1, 4, 4)
	for _, p := range []ops.Params{
		{BlockLen: 8, Stride: 2, SelectBlock: 4, TopN: 5, Window: 1},
		{BlockLen: 15, Stride: 3, SelectBlock: 9, TopN: 6, Window: 1},
		{BlockLen: 20, Stride: 4, SelectBlock: 12, TopN: 7, Window: 1},
	} {
		q, _, _ := c.Tokens(1)
		kc, vc := c.Compressed(4, p.BlockLen, p.Stride)
		clear(kc.Floats)
		for _, dt := range dtypes {
			idx := selectBlocks(t, c, p, dt, q, kc, vc)
			for query := range c.S {
				own := query / p.SelectBlock
				if own < p.TopN {
					continue
				}
				shared := make([]int, c.S)
				for i := range spec.NumVisible(query, p.BlockLen, p.Stride) {
					for token := i * p.Stride; token < i*p.Stride+p.BlockLen; token++ {
						shared[token/p.SelectBlock]++
					}
				}
				free := make([]int32, spec.FreeBlocks(query, p.SelectBlock))
				for i := range free {
					free[i] = int32(i + 1)
				}
				slices.SortStableFunc(free, func(a, b int32) int { return shared[b] - shared[a] })
				want := append([]int32{0, int32(own - 1), int32(own)}, free[:p.TopN-spec.ForcedBlocks]...)
				slices.Sort(want)
				require.Equal(t, want, idx.Ints[query*p.TopN:][:p.TopN], "%v %+v, query %d", dt, p, query)
			}
		}
	}
}

// TestAttentionBlocksLongerThanSequence: a selection block longer than the sequence is the only block, a longer window
// shows every token, and a longer compression block is never seen.
func TestAttentionBlocksLongerThanSequence(t *testing.T) {
	c, p := opcases.NewDims(1, 40, 2, 1, 4, 4), ops.Params{BlockLen: 1 << 60, Stride: 1 << 60, SelectBlock: 1 << 60,
		TopN: 3, Window: 1}
	q, k, v := c.Tokens(1)
	kc, vc := c.Compressed(4, p.BlockLen, p.Stride)
	idx := selectBlocks(t, c, p, tensor.Float64, q, kc, vc)
	require.Equal(t, []int32{0, -1, -1}, idx.Ints[39*3:])
	o := runSpec(t, attention.Selected{SelectBlock: math.MaxInt}, tensor.Float64, q, k, v, idx)
	dense := runSpec(t, attention.SlidingWindow{Window: c.S}, tensor.Float64, q, k, v)
	testutil.Within(t, "o", o[0].Floats, dense[0].Floats, 1e-14)
	require.Equal(t, dense, runSpec(t, attention.SlidingWindow{Window: math.MaxInt}, tensor.Float64, q, k, v))
	p.SelectBlock, p.BlockLen, p.Stride = 4, 1<<60, 4
	require.Equal(t, []int32{0, 8, 9}, selectBlocks(t, c, p, tensor.Float64, q, kc, vc).Ints[39*3:])
}

// pipeline builds the compressed and the selected branch from q, k, v, kc and vc, and returns the sum of their outputs.
func pipeline(p ops.Params) build {
	return func(in []*G.Node) (*G.Node, error) {
		o := G.Must(ops.CompressedAttention(in[0], in[3], in[4], p))
		idx := G.Must(ops.SelectBlocks(in[0], in[3], G.Must(attention.LSE(o)), p))
		return G.Add(o, G.Must(ops.SelectedAttention(in[0], in[1], in[2], idx, p.SelectBlock)))
	}
}

// TestSelectBlocksPassesNoGradient: no gradient flows through the block selection. The gradients are those of the
// branches with fixed blocks.
func TestSelectBlocksPassesNoGradient(t *testing.T) {
	c, p := opcases.NewDims(1, 60, 4, 2, 8, 8), ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 4, Window: 1}
	q, k, v := c.Tokens(1)
	kc, vc := c.Compressed(4, p.BlockLen, p.Stride)
	do := normal("do", 9, c.B, c.S, c.Hq, c.Dv)
	list := opcases.Branches(c, p)
	cmp, cmpGrads := runAttention(t, list[2], tensor.Float64, do)
	sel, selGrads := runAttention(t, list[3], tensor.Float64, do)
	sum := func(x, y []float64) []float64 {
		z := make([]float64, len(x))
		cpu.Add(z, x, y)
		return z
	}
	for vm := range vms {
		res := runGraph(t, vm, tensor.Float64, pipeline(p), do.Floats, q, k, v, kc, vc)
		testutil.Within(t, "o", res.out, sum(cmp[0].Floats, sel[0].Floats), 1e-14)
		testutil.Within(t, "dq", res.grads["q"], sum(cmpGrads[0].Floats, selGrads[0].Floats), 1e-14)
		testutil.Within(t, "dk", res.grads["k"], selGrads[1].Floats, 1e-14)
		testutil.Within(t, "dv", res.grads["v"], selGrads[2].Floats, 1e-14)
		testutil.Within(t, "dkc", res.grads["kc"], cmpGrads[1].Floats, 1e-14)
		testutil.Within(t, "dvc", res.grads["vc"], cmpGrads[2].Floats, 1e-14)
	}
}

// TestSelectedGradientsAlone: only the selected branch of the graph has a gradient, but its block selection needs
// another branch.
func TestSelectedGradientsAlone(t *testing.T) {
	c, p := opcases.NewDims(1, 30, 2, 1, 8, 8), ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 3, Window: 1}
	q, k, v := c.Tokens(1)
	kc, _ := c.Compressed(4, p.BlockLen, p.Stride)
	for vm := range vms {
		g := G.NewGraph()
		Q, K, V, KC := q.Node(g, tensor.Float64), k.Node(g, tensor.Float64), v.Node(g, tensor.Float64),
			kc.Node(g, tensor.Float64)
		o := G.Must(ops.CompressedAttention(Q, KC, KC, p))
		idx := G.Must(ops.SelectBlocks(Q, KC, G.Must(attention.LSE(o)), p))
		sel := G.Must(ops.SelectedAttention(Q, K, V, idx, p.SelectBlock))
		require.NoError(t, testutil.Err(G.Grad(G.Must(G.Sum(sel)), Q, K, V)))
		require.NoError(t, testutil.Closing(vms[vm](g))(t).RunAll())
		dv := testutil.Must(V.Grad())(t)
		total := 0.0
		for _, x := range testutil.Floats(t, dv.Data()) {
			total += x
		}
		require.InDelta(t, float64(c.S*c.Hq*c.Dv), total, 1e-9, "each row's probabilities sum to 1")
	}
}
