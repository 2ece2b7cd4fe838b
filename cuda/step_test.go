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
)

// optimizer is a machine with gradients of weights that are on the device, and its solver.
type optimizer struct {
	machine *graph.Machine
	weights G.Nodes
	solver  *optim.AdamW
}

// rule says which weights take steps of Muon.
type rule func(name string, shape tensor.Shape) bool

var rules = map[string]rule{"adamw": nil, "muon": optim.DefaultDecayRule}

// newOptimizer returns an optimizer of network, with the weights on b if that is not nil.
func newOptimizer(t testing.TB, b *cuda.Backend, muon rule, opts ...graph.Option) *optimizer {
	g, _ := network(t)
	o := &optimizer{weights: G.Nodes{g.ByName("w")[0], g.ByName("scale")[0]}}
	if b != nil {
		testutil.Closing(graph.MoveInputs(b, o.weights...))(t)
		opts = append(opts, graph.WithBackend(b))
	}
	o.solver = testutil.Must(optim.NewAdamW(optim.WithClip(0.1), optim.WithMuon(muon)))(t)
	o.machine = testutil.Closing(graph.NewMachine(g, append(opts, graph.WithOptimizer(o.solver, o.weights...))...))(t)
	return o
}

func (o *optimizer) step(t testing.TB) {
	if err := o.machine.Step(); err != nil {
		t.Fatal(err)
	}
}

func TestStepsAllocateNothing(t *testing.T) {
	for _, r := range rules {
		b, f := open(t)
		o := newOptimizer(t, b, r)
		o.step(t)
		copies := during(f, []string{"MemcpyHtoDAsync"}, func() { o.step(t) })
		require.Equal(t, map[string]int{"MemcpyHtoDAsync": 3}, copies,
			"two inputs and the numbers of the step, but not the table of tensors")
		require.Zero(t, testing.AllocsPerRun(10, func() {
			o.step(t)
			if err := o.machine.Synchronize(); err != nil {
				t.Fatal(err)
			}
		}))
	}
}

// TestStepsOnGPU compares steps on the CPU with steps on the GPU, eager and captured.
func TestStepsOnGPU(t *testing.T) {
	b := cudatest.Open(t)
	for name, r := range rules {
		t.Run(name, func(t *testing.T) { testStepsOnGPU(t, b, r) })
	}
}

func testStepsOnGPU(t *testing.T, b *cuda.Backend, r rule) {
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
