package cuda_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/cudatest"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// goldenNSA is the attention of a golden as one float32 graph, from the tokens to the gradients of all inputs.
type goldenNSA struct {
	graph *G.ExprGraph
	idx   *G.Node
	nodes map[string]*G.Node // what the golden has under these names
	names []string           // of nodes, in order
}

// newGoldenNSA builds the graph. The selected blocks are those that the graph chooses itself, or the golden's.
func newGoldenNSA(t testing.TB, g testutil.Golden, chooses bool) *goldenNSA {
	t.Helper()
	c := g.Config
	p := ops.Params{BlockLen: c.BlockLen, Stride: c.Stride, SelectBlock: c.SelBlock, TopN: c.TopN, Window: c.Window}
	x := &goldenNSA{graph: G.NewGraph(), nodes: map[string]*G.Node{}}
	input := func(name string) *G.Node {
		v := tensor.New(tensor.WithShape(g.Shape(t, name)...), tensor.WithBacking(testutil.Convert[float32](g.F64(t, name))))
		return G.NewTensor(x.graph, tensor.Float32, v.Dims(), G.WithShape(v.Shape()...), G.WithName(name), G.WithValue(v))
	}
	show := func(name string, n *G.Node, err error) *G.Node {
		t.Helper()
		require.NoError(t, err, name)
		x.nodes[name] = n
		x.names = append(x.names, name)
		return n
	}
	attend := func(branch string, o *G.Node, err error) *G.Node {
		t.Helper()
		show("o_"+branch, o, err)
		lse, err := ops.LSE(o)
		show("lse_"+branch, lse, err)
		return o
	}
	q := input("q")
	in := map[string]*G.Node{"q": q}
	wrt := G.Nodes{q}
	for _, name := range []string{"k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win", "gates"} {
		in[name] = input(name)
		wrt = append(wrt, in[name])
	}
	n, err := ops.CompressMean(in["k_cmp"], p.BlockLen, p.Stride)
	kc := show("k_compressed", n, err)
	n, err = ops.CompressMean(in["v_cmp"], p.BlockLen, p.Stride)
	vc := show("v_compressed", n, err)
	n, err = ops.CompressedAttention(q, kc, vc, p.BlockLen, p.Stride)
	compressed := attend("cmp", n, err)
	if chooses {
		x.idx, err = ops.SelectBlocks(q, kc, x.nodes["lse_cmp"], p)
		require.NoError(t, err)
	} else {
		idx := tensor.New(tensor.WithShape(g.Shape(t, "idx")...), tensor.WithBacking(g.I32(t, "idx")))
		x.idx = G.NewTensor(x.graph, tensor.Int32, 4, G.WithName("idx"), G.WithShape(idx.Shape()...), G.WithValue(idx))
	}
	n, err = ops.SelectedAttention(q, in["k_sel"], in["v_sel"], x.idx, p.SelectBlock)
	selected := attend("sel", n, err)
	n, err = ops.SlidingWindow(q, in["k_win"], in["v_win"], p.Window)
	window := attend("win", n, err)
	n, err = ops.GatedSum(in["gates"], compressed, selected, window)
	o := show("o", n, err)
	loss, err := G.HadamardProd(o, input("r"))
	require.NoError(t, err)
	loss, err = G.Sum(loss)
	require.NoError(t, err)
	_, err = graph.Grad(loss, wrt...)
	require.NoError(t, err)
	for _, w := range wrt {
		show("grad_"+w.Name(), w.Deriv(), nil)
	}
	return x
}

// arrays returns the nodes of the golden's arrays.
func (x *goldenNSA) arrays() (list G.Nodes) {
	for _, name := range x.names {
		list = append(list, x.nodes[name])
	}
	return list
}

// wanted returns the i-th array as the golden has it, of a number of elements.
func (x *goldenNSA) wanted(t testing.TB, g testutil.Golden, i, elements int) []float64 {
	if want := g.F64(t, x.names[i]); len(want) > 0 {
		return want
	}
	return make([]float64, elements) // without a block there is one row that nobody sees
}

// compareGoldens holds a backend to every golden in float32: the chosen blocks exactly, all arrays within 1e-5 of their
// largest magnitude, the same bits in each eager and captured run.
func compareGoldens(t *testing.T, b graph.Backend) {
	for _, g := range testutil.Goldens(t, testutil.Ops) {
		t.Run(g.Name, func(t *testing.T) {
			x := newGoldenNSA(t, g, true)
			keep := append(x.arrays(), x.idx)
			var first [][]float64
			for _, opts := range [][]graph.Option{nil, {graph.WithCapture()}} {
				m := machine(t, x.graph, b, append(opts, graph.WithKeep(keep...))...)
				for range 3 {
					got := run(t, m, keep)
					if first == nil {
						first = got
					}
					require.Equal(t, bits(first), bits(got), "the same bits in each run")
				}
				if !b.Device().Host {
					require.Zero(t, m.Counts()["host"], "%v", m.Plan())
				}
			}
			chosen := make([]int32, len(first[len(x.names)]))
			for i, j := range first[len(x.names)] {
				chosen[i] = int32(j)
			}
			require.Equal(t, g.I32(t, "idx"), chosen)
			for i, name := range x.names {
				testutil.Within(t, name, first[i], x.wanted(t, g, i, len(first[i])), 1e-5)
			}
		})
	}
}

// TestGoldensOnGPU: the goldens by the kernels of the GPU.
func TestGoldensOnGPU(t *testing.T) { compareGoldens(t, cudatest.Open(t)) }

// TestGoldensOnHost: the same by those of the CPU.
func TestGoldensOnHost(t *testing.T) { compareGoldens(t, graph.NewCPU(1)) }

// compareGoldensInHalf holds a backend to every golden in half precision, with the golden's blocks: all arrays within twice
// the error of the naive implementation, and one rounding.
func compareGoldensInHalf(t *testing.T, b graph.Backend) {
	for _, p := range halfTypes {
		for _, g := range testutil.Goldens(t, testutil.Ops) {
			t.Run(fmt.Sprint(p.precision, "/", g.Name), func(t *testing.T) {
				results := func(b graph.Backend) (*goldenNSA, [][]float64) {
					x := newGoldenNSA(t, g, false)
					m := machine(t, x.graph, b, graph.WithKeep(x.arrays()...), graph.WithPrecision(p.precision))
					return x, run(t, m, x.arrays())
				}
				slow := newNaive()
				x, bounds := results(slow)
				_, got := results(b)
				for i, name := range x.names {
					want := x.wanted(t, g, i, len(got[i]))
					bound := newHalfBound(want, bounds[i], slow.storedAs(x.graph, x.nodes[name]), p.unit).bound
					testutil.Within(t, name, got[i], want, bound)
				}
			})
		}
	}
}

// TestGoldensInHalfOnGPU: the goldens in bfloat16 and float16 by the kernels of the GPU.
func TestGoldensInHalfOnGPU(t *testing.T) { compareGoldensInHalf(t, cudatest.Open(t)) }

// TestGoldensInHalfOnNaive: the bounds hold for what they come from.
func TestGoldensInHalfOnNaive(t *testing.T) { compareGoldensInHalf(t, newNaive()) }

// TestGoldensHaveKernels binds and launches the graphs on a driver whose kernels compute nothing.
func TestGoldensHaveKernels(t *testing.T) {
	for _, g := range testutil.Goldens(t, testutil.Ops) {
		for _, opts := range [][]graph.Option{nil, {graph.WithCapture()}} {
			b, _ := open(t)
			x := newGoldenNSA(t, g, true)
			keep := append(x.arrays(), x.idx)
			m := machine(t, x.graph, b, append(opts, graph.WithKeep(keep...))...)
			for range 3 {
				run(t, m, keep)
			}
			require.Zero(t, m.Counts()["host"], "%s: %v", g.Name, m.Plan())
		}
	}
}
