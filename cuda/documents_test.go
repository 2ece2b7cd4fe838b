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
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops"
)

// packedModel returns a small TinyLM for up to that many documents, 0 for rows without documents, and its training
// step.
func packedModel(t testing.TB, b graph.Backend, p graph.Precision, most int) (m *tinylm.Model, step func() error) {
	c := tinylm.Tiny()
	c.Layers, c.Context = 2, 96
	w := testutil.Must(tinylm.NewWeights(c, tensor.Float32, 1))(t)
	opts := []graph.Option{graph.WithBackend(b), graph.WithPrecision(p), graph.WithCapture()}
	if !b.Device().Host {
		require.NoError(t, w.MoveTo(b))
		t.Cleanup(func() { require.NoError(t, w.Free()) })
	}
	options := []tinylm.ModelOption{tinylm.WithoutLogits(), tinylm.WithMachine(opts...),
		tinylm.WithOptimizer(testutil.Must(optim.NewAdamW(optim.WithLR(3e-3)))(t))}
	if most > 0 {
		options = append(options, tinylm.WithDocuments(most))
	}
	m = testutil.Closing(tinylm.NewModel(w, 2, c.Context, options...))(t)
	return m, m.Step
}

// TestWrongStart: kernels cannot report a start for which there are no keys, so the machine does, and launches nothing.
func TestWrongStart(t *testing.T) {
	b, _ := open(t)
	g := G.NewGraph()
	x := func(name string, s, heads int) *G.Node {
		return G.NewTensor(g, tensor.Float32, 4, G.WithShape(1, s, heads, 8), G.WithName(name), G.WithInit(G.Gaussian(0, 1)))
	}
	starts := []int32{6}
	start := G.NewVector(g, tensor.Int32, G.WithName("start"),
		G.WithValue(tensor.New(tensor.WithShape(1), tensor.WithBacking(starts))))
	k := x("k", 9, 1)
	o := testutil.Must(ops.CausalAttention(x("q", 3, 2), k, k, ops.WithStart(start)))(t)
	grads := testutil.Must(graph.Grad(G.Must(G.Sum(G.Must(G.Square(o)))), k))(t)
	m := machine(t, g, b, graph.WithKeep(o, grads[0]))
	run(t, m, nil)
	require.Equal(t, tensor.Shape{1, 9, 1, 8}, grads[0].Value().Shape())
	for _, starts[0] = range []int32{-1, 7} {
		err := m.RunAll()
		require.ErrorContains(t, err, fmt.Sprintf("start of row 0 is %d, want 0 to 6", starts[0]))
	}
	starts[0] = 0
	run(t, m, nil)
}

// TestTrainingStepNeverWaits counts the driver's calls in recorded training steps: one replay, no launch outside it, no
// wait except for the loss of the step before, and no allocation. New boundaries of documents need only one more
// upload. Wrong boundaries are an error of the step, which then launches nothing.
func TestTrainingStepNeverWaits(t *testing.T) {
	memory := []string{"MemAlloc", "MemFree", "MemHostAlloc", "MemFreeHost"}
	counted := append(memory, "LaunchKernelEx", "GraphLaunch", "CtxSynchronize", "EventSynchronize", "MemcpyHtoDAsync",
		"MemcpyDtoHAsync", "MemcpyDtoDAsync", "StreamBeginCapture", "ModuleLoadData")
	for _, p := range []graph.Precision{graph.F32, graph.BF16} {
		for _, most := range []int{0, 9} {
			b, f := open(t)
			m, train := packedModel(t, b, p, most)
			boundaries := func(cu ...int32) {
				for i := copy(m.CuSeqlens(), cu); i < len(m.CuSeqlens()); i++ {
					m.CuSeqlens()[i] = int32(len(m.Tokens()))
				}
			}
			loss := testutil.Must(m.LossReader())(t)
			step := func() {
				require.NoError(t, train())
				require.NoError(t, loss.Fetch())
				if loss.Waiting() == 2 {
					testutil.Must(loss.Next())(t)
				}
			}
			step()
			require.Empty(t, during(f, memory, step))
			step()
			want := map[string]int{
				"GraphLaunch":      1,
				"EventSynchronize": 1,                // of the loss before
				"MemcpyHtoDAsync":  3 + min(1, most), // tokens, targets, the optimizer's numbers, boundaries
				"MemcpyDtoHAsync":  1,                // the loss
			}
			for _, cu := range [][]int32{{0, 96}, {0, 0, 5, 96, 97, 150}, {0, 1, 96}, {0, 96}, {0, 96}} {
				boundaries(cu...)
				require.Equal(t, want, during(f, counted, step), "%v, %d documents: %v", p, most, cu)
			}
			require.Zero(t, m.Machine().Counts()["host"], "%v", m.Machine().Plan())
			if most > 0 {
				boundaries(0, 5, 97)
				wrong := func() { require.ErrorContains(t, train(), "row of 96 tokens") }
				require.Empty(t, during(f, []string{"GraphLaunch"}, wrong))
				boundaries(0, 96)
				require.NoError(t, train())
			}
		}
	}
}

// TestPackedTrainingOnGPU trains TinyLM on documents, with new boundaries in each step: the losses are those of the
// CPU.
func TestPackedTrainingOnGPU(t *testing.T) {
	b := cudatest.Open(t)
	const most, steps = 12, 20
	losses := func(b graph.Backend, p graph.Precision) (list []float64) {
		m, step := packedModel(t, b, p, most)
		rng := rand.New(rand.NewPCG(3, 3))
		for i := range steps {
			// few batches, so that there is something to learn
			copy(m.Tokens(), testutil.Tokens(uint64(i%4), len(m.Tokens()), 7))
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
