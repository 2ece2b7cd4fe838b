package graph_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/cudatest"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// onHost are the graphs with ops that a GPU has no kernel for.
var onHost = map[string]bool{"convolution": true, "max pool": true}

// TestStockGraphsOnGPU runs the graphs of gorgonia's ops in float32 on a GPU: values and gradients as the CPU has them in
// float64, no op on the host, and the same bits from a recording and from another run.
func TestStockGraphsOnGPU(t *testing.T) {
	backend := cudatest.Open(t)
	for _, c := range stocks {
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
	if c.wrong == "" {
		_, err := graph.Grad(b.cost, b.in...)
		require.NoError(t, err)
	}
	m, err := graph.NewMachine(b.graph, append(opts, graph.WithKeep(b.out, b.cost))...)
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	b.let(t, values)
	for range 3 {
		require.NoError(t, m.RunAll())
	}
	if !m.Plan().Device.Host && !onHost[c.name] {
		require.Zero(t, m.Counts()["host"], "%v", m.Plan())
	}
	all := map[string][]float64{"value": numbers(t, b.out.Value()), "cost": numbers(t, b.cost.Value())}
	for i, n := range b.in {
		if c.wrong == "" {
			v, err := n.Grad()
			require.NoError(t, err)
			all["gradient of "+c.in[i].name] = numbers(t, v)
		}
	}
	return all
}
