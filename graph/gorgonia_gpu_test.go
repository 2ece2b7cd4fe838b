package graph_test

import (
	"io"
	"log"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/cudatest"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// onHost are the types of the ops that a GPU has no kernel for.
const onHost = "BatchNormOp batchnormDiffOp GroupNormOp groupNormDiffOp avgPoolOp maxPoolOp maxPoolDiffOp globalAveragePoolOp im2colOp col2imOp " +
	"upsampleOp upsampleDiffOp byIndicesOp byIndicesOpDiffOp ctcLossOp ctcLossDiffOp dropoutOp sparsemaxOp sparsemaxDiffOp diagFlatOp yoloOp"

// TestGorgoniaOnGPU runs the graphs of TestGorgonia in float32 on a GPU: values and gradients as the CPU has them in float64,
// no op on the host that has a kernel, and the same bits from a recording and from another run.
func TestGorgoniaOnGPU(t *testing.T) {
	backend := cudatest.Open(t)
	log.SetOutput(io.Discard) // GroupNorm prints its gradients
	defer log.SetOutput(os.Stderr)
	for _, c := range gorgonias() {
		t.Run(c.name, func(t *testing.T) {
			values := c.inputs(1)
			for i, v := range values { // float32 rounds the inputs, not the results
				values[i] = testutil.Convert[float64](testutil.Convert[float32](v))
			}
			want := c.results(t, tensor.Float64, values)
			first := c.results(t, tensor.Float32, values, graph.WithBackend(backend), graph.WithPolicy(graph.Policy{}))
			for name, w := range want {
				testutil.Within(t, name, first[name], w, 1e-5)
			}
			for range 2 {
				again := c.results(t, tensor.Float32, values, graph.WithBackend(backend), graph.WithCapture(), graph.WithPolicy(graph.Policy{}))
				require.Equal(t, first, again)
			}
		})
	}
}

// results runs the graph three times and returns the output, the cost and the gradients of the last run, by name.
func (c stock) results(t testing.TB, dt tensor.Dtype, values [][]float64, opts ...graph.Option) map[string][]float64 {
	t.Helper()
	b := c.graphOf(t, dt)
	withGrads := c.wrong == "" || c.corrected
	if strings.HasPrefix(c.name, "BatchNormStacked") { // the gradient of the first bias is zero but for rounding
		withGrads = false
	}
	if withGrads {
		testutil.Must(graph.Grad(b.cost, b.in...))(t)
	}
	m := testutil.Must(graph.NewMachine(b.graph, slices.Concat(c.options(), opts, []graph.Option{graph.WithKeep(b.out, b.cost)})...))(t)
	defer func() { require.NoError(t, m.Close()) }()
	b.let(t, values)
	for range 3 {
		require.NoError(t, m.RunAll())
	}
	for _, s := range m.Plan().Steps {
		if !m.Plan().Device.Host && s.Implementation == "host" && s.Node.Dtype() != tensor.Bool {
			require.Contains(t, strings.Fields(onHost), reflect.Indirect(reflect.ValueOf(s.Node.Op())).Type().Name(), "%s: %v", s.Op, s.Refused)
		}
	}
	all := map[string][]float64{"value": numbers(t, b.out.Value()), "cost": numbers(t, b.cost.Value())}
	for i, n := range b.in {
		if withGrads {
			all["gradient of "+c.in[i].name] = gradient(t, n)
		}
	}
	return all
}
