package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// TestTrainingStepNeverWaits counts the driver's calls in training steps that are recorded: one replay and one launch of
// what is not in it, no wait but for the loss of the step before, no memory.
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
		loss := testutil.Must(m.WatchLoss())(t)
		step := func() {
			require.NoError(t, m.RunAndStep(solver))
			require.NoError(t, loss.Fetch())
			if loss.Waiting() == 2 {
				testutil.Must(loss.Next())(t)
			}
		}
		step()
		// holds counts the calls of some steps.
		holds := func(steps int, methods []string, want map[string]int) {
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
		holds(1, memory, nil)
		step()
		holds(5, append(memory, "LaunchKernel", "GraphLaunch", "CtxSynchronize", "EventSynchronize", "MemcpyHtoDAsync",
			"MemcpyDtoHAsync", "MemcpyDtoDAsync", "StreamBeginCapture", "ModuleLoadData"), map[string]int{
			"GraphLaunch":      1,
			"EventSynchronize": 1, // of the loss before
			"MemcpyHtoDAsync":  3, // tokens, targets, the optimizer's numbers
			"MemcpyDtoHAsync":  1, // the loss
		})
	}
}
