package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/cuda/cudatest"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// numbers returns the elements of a value, wherever it is.
func numbers(t testing.TB, v G.Value) []float64 {
	t.Helper()
	return testutil.Floats(t, testutil.Must(graph.HostValue(v))(t).Data())
}

func run(t testing.TB, m *graph.Machine, nodes G.Nodes) [][]float64 {
	t.Helper()
	require.NoError(t, m.RunAll())
	require.NoError(t, m.Synchronize())
	var list [][]float64
	for _, n := range nodes {
		list = append(list, numbers(t, n.Value()))
	}
	return list
}

// runOnGPU returns the results of a graph, which have the same bits in eager and captured runs. No op runs on the host.
func runOnGPU(t *testing.T, b *cuda.Backend, g *G.ExprGraph, results G.Nodes) (first [][]float64) {
	for _, opts := range [][]graph.Option{nil, {graph.WithCapture()}} {
		m := machine(t, g, b, append(opts, graph.WithKeep(results...))...)
		for range 3 {
			got := run(t, m, results)
			if first == nil {
				first = got
			}
			require.Equal(t, bits(first), bits(got), "the same bits in each run")
		}
		require.Zero(t, m.Counts()["host"], "%v", m.Plan())
	}
	return first
}

// bits makes NaN equal to itself.
func bits(list [][]float64) [][]uint64 {
	var all [][]uint64
	for _, x := range list {
		all = append(all, unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(x))), len(x)))
	}
	return all
}

// TestLayersOnGPU compares a layer of NSA and its gradients with the CPU's in float64, on whole rows and on packed
// documents. One graph and one recording take all boundaries.
func TestLayersOnGPU(t *testing.T) {
	const B, S, most = 2, 131, 40
	b := cudatest.Open(t)
	mean := nn.NSAConfig{
		Dim: 24, Heads: 4, KVHeads: 2, KeyDim: 16, ValueDim: 12, GateHidden: 5,
		Params: ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 4, Window: 11},
	}
	mlp, softmax := mean, mean
	mlp.Phi, mlp.PhiHidden = nn.PhiMLP, 10
	softmax.GateActivation = nn.GateSoftmax
	for name, config := range map[string]nn.NSAConfig{"mean": mean, "mlp": mlp, "softmax": softmax} {
		for _, packed := range []bool{false, true} {
			t.Run(fmt.Sprint(name, "/", packed), func(t *testing.T) {
				cu := tensor.New(tensor.Of(tensor.Int32), tensor.WithShape(most+1))
				build := func(dt tensor.Dtype, opts ...graph.Option) func() ([][]float64, G.Nodes) {
					g := G.NewGraph()
					x, r := opcases.Normal("x", 1, B, S, config.Dim).Node(g, dt),
						opcases.Normal("r", 2, B, S, config.Dim).Node(g, dt)
					var boundaries *G.Node
					if packed {
						boundaries = G.NewVector(g, tensor.Int32, G.WithShape(most+1), G.WithName("cu_seqlens"),
							G.WithValue(cu))
					}
					l := testutil.Must(nn.NewNSA(g, "attn.", config, rounded(t, config, dt)))(t)
					y := testutil.Must(l.Apply(x, nn.WithCuSeqlens(boundaries)))(t)
					wrt := append(G.Nodes{x}, l.Learnables()...)
					testutil.Must(graph.Grad(G.Must(G.Sum(G.Must(G.HadamardProd(y, r)))), wrt...))(t)
					results := G.Nodes{y}
					for _, n := range wrt {
						results = append(results, n.Deriv())
					}
					m := testutil.Closing(graph.NewMachine(g, append(opts, graph.WithKeep(results...))...))(t)
					return func() ([][]float64, G.Nodes) {
						defer m.Reset()
						list := run(t, m, results)
						require.True(t, opts == nil || m.Counts()["host"] == 0, "%v", m.Plan())
						return list, results
					}
				}
				host, eager, captured := build(tensor.Float64), build(tensor.Float32, graph.WithBackend(b)),
					build(tensor.Float32, graph.WithBackend(b), graph.WithCapture())
				rng := rand.New(rand.NewPCG(7, 7))
				var before [][]float64
				for range 6 {
					at := []int32{0, S}
					for range rng.IntN(most - 1) {
						at = append(at, rng.Int32N(B*S))
					}
					slices.Sort(at)
					for i := copy(cu.Int32s(), at); i <= most; i++ {
						cu.Int32s()[i] = B * S
					}
					want, nodes := host()
					got, _ := eager()
					for i, x := range got {
						testutil.Within(t, nodes[i].Name(), x, want[i], 1e-5)
					}
					again, _ := captured()
					require.Equal(t, bits(got), bits(again), "the same bits in a captured run")
					if !packed && before != nil {
						require.Equal(t, bits(before), bits(got), "the same bits in each run")
					}
					before = got
				}
			})
		}
	}
}

// rounded returns new parameters of a layer, whose values are the same in both types.
func rounded(t testing.TB, config nn.NSAConfig, dt tensor.Dtype) nn.Source {
	g := G.NewGraph()
	l := testutil.Must(nn.NewNSA(g, "attn.", config, nn.Random(tensor.Float32, 4)))(t)
	values := map[string]*tensor.Dense{}
	for _, n := range l.Learnables() {
		v := n.Value().(*tensor.Dense)
		if dt == tensor.Float64 {
			v = tensor.New(tensor.WithShape(v.Shape()...), tensor.WithBacking(testutil.Convert[float64](v.Float32s())))
		}
		values[n.Name()] = v
	}
	return nn.Values(values)
}

// goldenNSA builds the attention of a golden as one float32 graph, from the tokens to the gradients of all inputs. It
// chooses the blocks itself. The selected branch takes them if the golden is built in, else the golden's: near ties may
// fall differently. results are the nodes of the arrays that the golden has under names, and then the chosen blocks.
func goldenNSA(t testing.TB, golden testutil.Golden) (g *G.ExprGraph, names []string, results G.Nodes) {
	t.Helper()
	c := golden.Config
	p := opcases.ParamsOf(c)
	g = G.NewGraph()
	show := func(name string, n *G.Node) *G.Node {
		names, results = append(names, name), append(results, n)
		return n
	}
	attend := func(branch string, o *G.Node) (*G.Node, *G.Node) {
		return show("o_"+branch, o), show("lse_"+branch, G.Must(ops.LSE(o)))
	}
	input := func(name string) *G.Node {
		return opcases.Array{Name: name, Shape: golden.Shape(t, name), Floats: golden.F64(t, name)}.
			Node(g, tensor.Float32)
	}
	in := map[string]*G.Node{}
	var wrt G.Nodes
	for _, name := range []string{"q", "k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win", "gates"} {
		in[name] = input(name)
		wrt = append(wrt, in[name])
	}
	q := in["q"]
	kc := show("k_compressed", G.Must(ops.CompressMean(in["k_cmp"], p)))
	vc := show("v_compressed", G.Must(ops.CompressMean(in["v_cmp"], p)))
	compressed, lse := attend("cmp", G.Must(ops.CompressedAttention(q, kc, vc, p)))
	idx := G.Must(ops.SelectBlocks(q, kc, lse, p))
	blocks := idx
	if !golden.BuiltIn {
		blocks = opcases.Array{Name: "idx", Shape: golden.Shape(t, "idx"), Ints: golden.I32(t, "idx")}.
			Node(g, tensor.Float32)
	}
	selected, _ := attend("sel", G.Must(ops.SelectedAttention(q, in["k_sel"], in["v_sel"], blocks, p.SelectBlock)))
	window, _ := attend("win", G.Must(ops.SlidingWindow(q, in["k_win"], in["v_win"], p.Window)))
	o := show("o", G.Must(ops.GatedSum(in["gates"], compressed, selected, window)))
	testutil.Must(graph.Grad(G.Must(G.Sum(G.Must(G.HadamardProd(o, input("r"))))), wrt...))(t)
	for _, w := range wrt {
		show("grad_"+w.Name(), w.Deriv())
	}
	return g, names, append(results, idx)
}

// TestGoldensOnGPU compares the kernels of the GPU with every golden in float32: the chosen blocks, all arrays within
// 1e-5 of their largest magnitude, the same bits in each eager and captured run.
func TestGoldensOnGPU(t *testing.T) {
	b := cudatest.Open(t)
	testutil.EachGolden(t, testutil.Ops, func(t *testing.T, golden testutil.Golden) {
		g, names, results := goldenNSA(t, golden)
		got := runOnGPU(t, b, g, results)
		blocks := make([]int32, len(got[len(names)]))
		for i, x := range got[len(names)] {
			blocks[i] = int32(x)
		}
		opcases.CompareSelection(t, golden, blocks, 1e-5)
		for i, name := range names {
			if len(golden.F64(t, name)) == 0 { // without a block there is one row that no query sees
				testutil.Within(t, name, got[i], make([]float64, len(got[i])), 0)
				continue
			}
			golden.Within(t, name, got[i], 1e-5)
		}
	})
}
