package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/cudatest"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops"
)

// TestDocumentsHaveKernels: every op that takes documents, and its gradient, runs on the device in every precision.
func TestDocumentsHaveKernels(t *testing.T) {
	for _, c := range opcases.DocumentCases() {
		if c.Cost != opcases.Small {
			continue
		}
		g := G.NewGraph()
		var in, floats G.Nodes
		for _, a := range c.Inputs {
			n := a.Node(g, tensor.Float32)
			if in = append(in, n); a.Ints == nil {
				floats = append(floats, n)
			}
		}
		y := testutil.Must(c.Build(in))(t)
		if c.Gradients != nil {
			testutil.Must(graph.Grad(G.Must(G.Sum(y)), floats...))(t)
		}
		for _, p := range []graph.Precision{graph.F32, graph.BF16, graph.FP16} {
			t.Run(fmt.Sprint(p, "/", c.Name), func(t *testing.T) {
				b, _ := open(t)
				m := machine(t, g, b, graph.WithKeep(y), graph.WithPrecision(p))
				run(t, m, nil)
				for _, s := range m.Plan().Steps {
					if s.Spec != nil {
						require.NotEqual(t, "host", s.Implementation, "%v", s.Refused)
					}
				}
			})
		}
	}
}

// packedModel returns a small TinyLM in half precision for documents, with a solver, and its steps.
func packedModel(t testing.TB, b graph.Backend, c tinylm.Config, p graph.Precision, most int) (m *tinylm.Model, step func() error) {
	w := testutil.Must(tinylm.NewWeights(c, tensor.Float32, 1))(t)
	opts := []graph.Option{graph.WithBackend(b), graph.WithPrecision(p), graph.WithCapture()}
	if !b.Device().Host {
		require.NoError(t, w.MoveTo(b))
		t.Cleanup(func() { require.NoError(t, w.Free()) })
	}
	m = testutil.Closing(tinylm.NewModel(w, 2, c.Context, tinylm.WithGradients(), tinylm.WithoutLogits(), tinylm.WithDocuments(most),
		tinylm.WithMachine(opts...)))(t)
	solver := testutil.Closing(optim.NewAdamW(optim.WithMachine(m.Machine()), optim.WithLR(3e-3)))(t)
	return m, func() error { return m.RunAndStep(solver) }
}

func packedConfig() tinylm.Config {
	c := tinylm.Tiny()
	c.Layers, c.Context = 2, 96
	return c
}

// TestNewDocumentsNeedNoCapture: for new boundaries a recorded training step needs only one more upload. Wrong boundaries are an
// error of the step, which then launches nothing.
func TestNewDocumentsNeedNoCapture(t *testing.T) {
	for _, p := range []graph.Precision{graph.F32, graph.BF16} {
		b, f := open(t)
		const most = 9
		m, step := packedModel(t, b, packedConfig(), p, most)
		total := int32(len(m.Tokens()))
		boundaries := func(cu ...int32) {
			for i := copy(m.CuSeqlens(), cu); i <= most; i++ {
				m.CuSeqlens()[i] = total
			}
		}
		for range 3 {
			require.NoError(t, step())
		}
		calls := func() (n []int) {
			for _, name := range []string{"GraphLaunch", "MemcpyHtoDAsync", "StreamBeginCapture", "LaunchKernelEx", "MemAlloc", "ModuleLoadData"} {
				n = append(n, f.Calls(name))
			}
			return n
		}
		since := func(before []int) []int {
			now := calls()
			for i := range now {
				now[i] -= before[i]
			}
			return now
		}
		for _, cu := range [][]int32{{0, 96}, {0, 0, 5, 96, 97, 150}, {0, 1, 96}} {
			before := calls()
			boundaries(cu...)
			require.NoError(t, step())
			require.Equal(t, []int{1, 4, 0, 0, 0, 0}, since(before), "%v: the replay; tokens, targets, boundaries, the optimizer's numbers", p)
		}
		before := calls()
		boundaries(0, 5, 97)
		require.ErrorContains(t, step(), "row of 96 tokens")
		require.Zero(t, since(before)[0])
		boundaries(0, 96)
		require.NoError(t, step())
		require.Zero(t, m.Machine().Counts()["host"], "%v", m.Machine().Plan())
	}
}

// TestPackedLayerOnGPU compares a layer of NSA over documents and its gradients with the CPU's in float64. One graph and one recording
// take all boundaries.
func TestPackedLayerOnGPU(t *testing.T) {
	const B, S, most = 2, 131, 40
	b := cudatest.Open(t)
	mean := nn.NSAConfig{
		Dim: 24, Heads: 4, KVHeads: 2, KeyDim: 16, ValueDim: 12, GateHidden: 5,
		Params: ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 4, Window: 11},
	}
	mlp := mean
	mlp.Phi, mlp.PhiHidden = nn.PhiMLP, 10
	for name, config := range map[string]nn.NSAConfig{"mean": mean, "mlp": mlp} {
		t.Run(name, func(t *testing.T) {
			cu := tensor.New(tensor.Of(tensor.Int32), tensor.WithShape(most+1))
			build := func(dt tensor.Dtype, opts ...graph.Option) (*graph.Machine, G.Nodes) {
				g := G.NewGraph()
				x, r := opcases.Normal("x", 1, B, S, config.Dim).Node(g, dt), opcases.Normal("r", 2, B, S, config.Dim).Node(g, dt)
				boundaries := G.NewVector(g, tensor.Int32, G.WithShape(most+1), G.WithName("cu_seqlens"), G.WithValue(cu))
				l := testutil.Must(nn.NewNSA(g, "attn.", config, rounded(t, config, dt)))(t)
				y := testutil.Must(l.Apply(x, nn.WithCuSeqlens(boundaries)))(t)
				wrt := append(G.Nodes{x}, l.Learnables()...)
				testutil.Must(graph.Grad(G.Must(G.Sum(G.Must(G.HadamardProd(y, r)))), wrt...))(t)
				results := G.Nodes{y}
				for _, n := range wrt {
					results = append(results, n.Deriv())
				}
				return testutil.Closing(graph.NewMachine(g, append(opts, graph.WithKeep(results...))...))(t), results
			}
			host, want := build(tensor.Float64)
			device, got := build(tensor.Float32, graph.WithBackend(b), graph.WithCapture())
			rng := rand.New(rand.NewPCG(7, 7))
			for range 6 {
				at := []int32{0, S}
				for range rng.IntN(most - 1) {
					at = append(at, rng.Int32N(B*S))
				}
				slices.Sort(at)
				for i := copy(cu.Int32s(), at); i <= most; i++ {
					cu.Int32s()[i] = B * S
				}
				wants := run(t, host, want)
				for i, x := range run(t, device, got) {
					testutil.Within(t, want[i].Name(), x, wants[i], 1e-5)
				}
				host.Reset()
				device.Reset()
			}
			require.Zero(t, device.Counts()["host"], "%v", device.Plan())
		})
	}
}

// TestPackedTrainingOnGPU trains TinyLM on documents, with new boundaries in each step: the losses are those of the CPU.
func TestPackedTrainingOnGPU(t *testing.T) {
	b := cudatest.Open(t)
	const most, steps = 12, 20
	losses := func(b graph.Backend, p graph.Precision) (list []float64) {
		m, step := packedModel(t, b, packedConfig(), p, most)
		rng := rand.New(rand.NewPCG(3, 3))
		for i := range steps {
			copy(m.Tokens(), testutil.Tokens(uint64(i%4), len(m.Tokens()), 7)) // few batches, so that there is something to learn
			at := []int32{0, int32(len(m.Tokens()) / 2)}
			for range rng.IntN(most - 2) {
				at = append(at, rng.Int32N(int32(len(m.Tokens()))))
			}
			slices.Sort(at)
			for i := copy(m.CuSeqlens(), at); i <= most; i++ {
				m.CuSeqlens()[i] = int32(len(m.Tokens()))
			}
			m.NextTokens()
			require.NoError(t, step())
			list = append(list, testutil.Must(m.Loss())(t))
		}
		if !b.Device().Host {
			require.Zero(t, m.Machine().Counts()["host"], "%v", m.Machine().Plan())
		}
		return list
	}
	want := losses(graph.NewCPU(0), graph.F32)
	require.Less(t, want[steps-1], want[0]-1)
	for p, tolerance := range map[graph.Precision]float64{graph.F32: 1e-3, graph.BF16: 2e-2, graph.FP16: 2e-2} {
		for i, loss := range losses(b, p) {
			require.InEpsilon(t, want[i], loss, tolerance, "%v, step %d", p, i)
		}
	}
}
