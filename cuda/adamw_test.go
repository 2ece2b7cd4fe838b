package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/cuda/cudatest"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// optimizer is a machine with gradients of weights that live on the device, and a solver in its queue.
type optimizer struct {
	machine *graph.Machine
	weights G.Nodes
	solver  *optim.AdamW
	grads   []G.ValueGrad
}

// newOptimizer returns an optimizer of network, with the weights on b if that is not nil.
func newOptimizer(t testing.TB, b *cuda.Backend, opts ...graph.Option) *optimizer {
	g, _ := network(t)
	o := &optimizer{weights: G.Nodes{g.ByName("w")[0], g.ByName("scale")[0]}}
	if b != nil {
		testutil.Closing(graph.MoveInputs(b, o.weights...))(t)
		opts = append(opts, graph.WithBackend(b))
	}
	o.machine = testutil.Closing(graph.NewMachine(g, opts...))(t)
	o.solver = testutil.Closing(optim.NewAdamW(optim.WithMachine(o.machine), optim.WithClip(0.1)))(t)
	o.grads = G.NodesToValueGrads(o.weights)
	return o
}

func (o *optimizer) step(t testing.TB) {
	if err := o.machine.RunAndStep(o.solver, o.grads); err != nil {
		t.Fatal(err)
	}
}

func TestAdamWStepsAllocateNothing(t *testing.T) {
	b, f := open(t)
	o := newOptimizer(t, b)
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

// TestAdamWOnGPU takes steps on the CPU and on the GPU, eager and captured.
func TestAdamWOnGPU(t *testing.T) {
	b := cudatest.Open(t)
	host, eager, captured := newOptimizer(t, nil), newOptimizer(t, b), newOptimizer(t, b, graph.WithCapture())
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
