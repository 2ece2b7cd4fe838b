package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/cuda/cudatest"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// optimizer is a machine with gradients of weights that are on the device, and a solver in the machine's stream.
type optimizer struct {
	machine *graph.Machine
	weights G.Nodes
	solver  *optim.AdamW
	grads   []G.ValueGrad
}

// rule says which weights take steps of Muon.
type rule func(name string, shape tensor.Shape) bool

func noMuon(string, tensor.Shape) bool { return false }

// newOptimizer returns an optimizer of network, with the weights on b if that is not nil.
func newOptimizer(t testing.TB, b *cuda.Backend, muon rule, opts ...graph.Option) *optimizer {
	g, _ := network(t)
	o := &optimizer{weights: G.Nodes{g.ByName("w")[0], g.ByName("scale")[0]}}
	if b != nil {
		testutil.Closing(graph.MoveInputs(b, o.weights...))(t)
		opts = append(opts, graph.WithBackend(b))
	}
	o.machine = testutil.Closing(graph.NewMachine(g, opts...))(t)
	o.solver = testutil.Closing(optim.NewAdamW(optim.WithMachine(o.machine), optim.WithClip(0.1), optim.WithMuon(muon)))(t)
	o.grads = G.NodesToValueGrads(o.weights)
	return o
}

func (o *optimizer) step(t testing.TB) {
	if err := o.machine.RunAndStep(o.solver, o.grads); err != nil {
		t.Fatal(err)
	}
}

func TestAdamWStepsAllocateNothing(t *testing.T) {
	for _, r := range []rule{noMuon, optim.DefaultDecayRule} {
		testStepsAllocateNothing(t, r)
	}
}

func testStepsAllocateNothing(t *testing.T, r rule) {
	b, f := open(t)
	o := newOptimizer(t, b, r)
	o.step(t)
	copies := f.Calls("MemcpyHtoDAsync")
	o.step(t)
	perStep := f.Calls("MemcpyHtoDAsync") - copies
	require.Equal(t, 3, perStep, "two inputs and the numbers of the step, but not the table of tensors")
	require.Zero(t, testing.AllocsPerRun(10, func() {
		o.step(t)
		if err := o.machine.Synchronize(); err != nil {
			t.Fatal(err)
		}
	}))
}

// TestAdamWOnGPU and TestMuonOnGPU compare steps on the CPU with steps on the GPU, eager and captured.
func TestAdamWOnGPU(t *testing.T) { testStepsOnGPU(t, noMuon) }

func TestMuonOnGPU(t *testing.T) { testStepsOnGPU(t, optim.DefaultDecayRule) }

func testStepsOnGPU(t *testing.T, r rule) {
	b := cudatest.Open(t)
	host, eager, captured := newOptimizer(t, nil, r), newOptimizer(t, b, r), newOptimizer(t, b, r, graph.WithCapture())
	for range 5 {
		host.step(t)
		for _, device := range []*optimizer{eager, captured} {
			device.step(t)
			require.InEpsilon(t, testutil.Must(host.solver.Norm())(t), testutil.Must(device.solver.Norm())(t), 1e-5)
			for i, n := range host.weights {
				testutil.Within(t, n.Name(), numbers(t, device.weights[i].Value()), numbers(t, n.Value()), 1e-4)
			}
		}
	}
}

// TestTrainingStepNeverWaits counts the driver's calls in recorded training steps: one replay and one launch outside it, no wait
// except for the loss of the step before, and no allocation.
func TestTrainingStepNeverWaits(t *testing.T) {
	for _, p := range []graph.Precision{graph.F32, graph.BF16} {
		b, f := open(t)
		c := tinylm.Tiny()
		c.Layers, c.Context = 2, 64
		w := testutil.Must(tinylm.NewWeights(c, tensor.Float32, 1))(t)
		require.NoError(t, w.MoveTo(b))
		t.Cleanup(func() { require.NoError(t, w.Free()) })
		m := testutil.Closing(tinylm.NewModel(w, 2, 64, tinylm.WithGradients(), tinylm.WithoutLogits(),
			tinylm.WithMachine(graph.WithBackend(b), graph.WithPrecision(p), graph.WithCapture())))(t)
		solver := testutil.Closing(optim.NewAdamW(optim.WithMachine(m.Machine())))(t)
		loss := testutil.Must(m.LossReader())(t)
		step := func() {
			require.NoError(t, m.RunAndStep(solver))
			require.NoError(t, loss.Fetch())
			if loss.Waiting() == 2 {
				testutil.Must(loss.Next())(t)
			}
		}
		step()
		// checkCounts checks how often some steps call methods.
		checkCounts := func(steps int, methods []string, want map[string]int) {
			before := map[string]int{}
			for _, name := range methods {
				before[name] = f.Calls(name)
			}
			for range steps {
				step()
			}
			for _, name := range methods {
				require.Equal(t, want[name]*steps, f.Calls(name)-before[name], "%v: %s", p, name)
			}
		}
		memory := []string{"MemAlloc", "MemFree", "MemHostAlloc", "MemFreeHost"}
		checkCounts(1, memory, nil)
		step()
		checkCounts(5, append(memory, "LaunchKernelEx", "GraphLaunch", "CtxSynchronize", "EventSynchronize", "MemcpyHtoDAsync",
			"MemcpyDtoHAsync", "MemcpyDtoDAsync", "StreamBeginCapture", "ModuleLoadData"), map[string]int{
			"GraphLaunch":      1,
			"EventSynchronize": 1, // of the loss before
			"MemcpyHtoDAsync":  3, // tokens, targets, the optimizer's numbers
			"MemcpyDtoHAsync":  1, // the loss
		})
	}
}
