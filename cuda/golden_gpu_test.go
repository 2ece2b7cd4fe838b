package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/cudatest"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// goldenNSA builds the attention of a golden as one float32 graph, from the tokens to the gradients of all inputs. It chooses the
// selected blocks itself. results are what the golden has under names, and at the end the chosen blocks.
func goldenNSA(t testing.TB, golden testutil.Golden) (g *G.ExprGraph, names []string, results G.Nodes) {
	t.Helper()
	c := golden.Config
	p := ops.Params{BlockLen: c.BlockLen, Stride: c.Stride, SelectBlock: c.SelBlock, TopN: c.TopN, Window: c.Window}
	g = G.NewGraph()
	show := func(name string, n *G.Node) *G.Node {
		names, results = append(names, name), append(results, n)
		return n
	}
	attend := func(branch string, o *G.Node) (*G.Node, *G.Node) {
		return show("o_"+branch, o), show("lse_"+branch, G.Must(ops.LSE(o)))
	}
	input := func(name string) *G.Node {
		return opcases.Array{Name: name, Shape: golden.Shape(t, name), Floats: golden.F64(t, name)}.Node(g, tensor.Float32)
	}
	in := map[string]*G.Node{}
	var wrt G.Nodes
	for _, name := range []string{"q", "k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win", "gates"} {
		in[name] = input(name)
		wrt = append(wrt, in[name])
	}
	q := in["q"]
	kc := show("k_compressed", G.Must(ops.CompressMean(in["k_cmp"], p.BlockLen, p.Stride)))
	vc := show("v_compressed", G.Must(ops.CompressMean(in["v_cmp"], p.BlockLen, p.Stride)))
	compressed, lse := attend("cmp", G.Must(ops.CompressedAttention(q, kc, vc, p.BlockLen, p.Stride)))
	idx := G.Must(ops.SelectBlocks(q, kc, lse, p))
	selected, _ := attend("sel", G.Must(ops.SelectedAttention(q, in["k_sel"], in["v_sel"], idx, p.SelectBlock)))
	window, _ := attend("win", G.Must(ops.SlidingWindow(q, in["k_win"], in["v_win"], p.Window)))
	o := show("o", G.Must(ops.GatedSum(in["gates"], compressed, selected, window)))
	testutil.Must(graph.Grad(G.Must(G.Sum(G.Must(G.HadamardProd(o, input("r"))))), wrt...))(t)
	for _, w := range wrt {
		show("grad_"+w.Name(), w.Deriv())
	}
	return g, names, append(results, idx)
}

// TestGoldensOnGPU holds the kernels of the GPU to every golden in float32: the chosen blocks exactly, all arrays within 1e-5 of
// their largest magnitude, the same bits in each eager and captured run.
func TestGoldensOnGPU(t *testing.T) {
	b := cudatest.Open(t)
	for _, golden := range testutil.Goldens(t, testutil.Ops) {
		t.Run(golden.Name, func(t *testing.T) {
			g, names, results := goldenNSA(t, golden)
			got := runOnGPU(t, b, g, results)
			require.Equal(t, testutil.Convert[float64](golden.I32(t, "idx")), got[len(names)])
			for i, name := range names {
				want := golden.F64(t, name)
				if len(want) == 0 {
					want = make([]float64, len(got[i])) // without a block there is one row that nobody sees
				}
				testutil.Within(t, name, got[i], want, 1e-5)
			}
		})
	}
}
