package cuda_test

import (
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

// newGoldenNSA builds the graph, which chooses the selected blocks itself.
func newGoldenNSA(t testing.TB, g testutil.Golden) *goldenNSA {
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
	x.idx, err = ops.SelectBlocks(q, kc, x.nodes["lse_cmp"], p)
	require.NoError(t, err)
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

// TestGoldensOnGPU holds the kernels of the GPU to every golden in float32: the chosen blocks exactly, all arrays within 1e-5 of
// their largest magnitude, the same bits in each eager and captured run.
func TestGoldensOnGPU(t *testing.T) {
	b := cudatest.Open(t)
	for _, g := range testutil.Goldens(t, testutil.Ops) {
		t.Run(g.Name, func(t *testing.T) {
			x := newGoldenNSA(t, g)
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
				require.Zero(t, m.Counts()["host"], "%v", m.Plan())
			}
			chosen := make([]int32, len(first[len(x.names)]))
			for i, j := range first[len(x.names)] {
				chosen[i] = int32(j)
			}
			require.Equal(t, g.I32(t, "idx"), chosen)
			for i, name := range x.names {
				want := g.F64(t, name)
				if len(want) == 0 {
					want = make([]float64, len(first[i])) // without a block there is one row that nobody sees
				}
				testutil.Within(t, name, first[i], want, 1e-5)
			}
		})
	}
}
