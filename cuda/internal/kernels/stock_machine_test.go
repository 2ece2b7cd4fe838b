package kernels_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/cuda/cudatest"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/fakedriver"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// results are the output of a case and the gradients of its inputs.
func (g stockGraph) results(c stockCase) G.Nodes {
	list := G.Nodes{g.out}
	for _, n := range g.in {
		if d := n.Deriv(); d != nil && !c.noGrad {
			list = append(list, d)
		}
	}
	return list
}

// runStock runs a case twice on a machine, and returns its results and the plan.
func runStock(t *testing.T, c stockCase, dt tensor.Dtype, opts ...graph.Option) ([][]float64, graph.Plan) {
	t.Helper()
	g := c.graph(t, dt)
	nodes := g.results(c)
	m, err := graph.NewMachine(g.ExprGraph, append(opts, graph.WithKeep(nodes...))...)
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	for range 2 {
		require.NoError(t, m.RunAll())
	}
	require.NoError(t, m.Synchronize())
	var all [][]float64
	for _, n := range nodes {
		v, err := graph.HostValue(n.Value())
		require.NoError(t, err)
		all = append(all, testutil.Floats(t, v.Data()))
	}
	return all, m.Plan()
}

// wantOnDevice holds a plan to kernels alone.
func wantOnDevice(t *testing.T, p graph.Plan) {
	t.Helper()
	for _, s := range p.Steps {
		if s.Implementation == "host" {
			t.Errorf("%s runs on the host: %v", s.Op, s.Refused)
		}
	}
}

// TestStockGraphsRunOnTheDevice plans and launches every case on a driver whose kernels compute nothing.
func TestStockGraphsRunOnTheDevice(t *testing.T) {
	t.Parallel()
	fake := fakedriver.New()
	fake.HideParams = true
	for name := range compiled(t) {
		fake.Kernel(name, fakedriver.Kernel{Run: func(*fakedriver.Launch) {}})
	}
	b, err := cuda.Open(0, driver.WithDriver(fake))
	require.NoError(t, err)
	for _, c := range stockCases() {
		if c.large {
			continue
		}
		t.Run(c.name(), func(t *testing.T) {
			for _, opts := range [][]graph.Option{nil, {graph.WithCapture()}} {
				_, plan := runStock(t, c, tensor.Float32, append(opts, graph.WithBackend(b))...)
				wantOnDevice(t, plan)
			}
		})
	}
	require.NoError(t, b.Close())
	require.Empty(t, fake.Leaks())
}

// TestStockGraphsOnGPU compares the results of every case with those of a machine on the CPU in float64.
func TestStockGraphsOnGPU(t *testing.T) {
	b := cudatest.Open(t)
	for _, c := range stockCases() {
		if c.large {
			continue
		}
		t.Run(c.name(), func(t *testing.T) {
			want, _ := runStock(t, c, tensor.Float64)
			for _, opts := range [][]graph.Option{nil, {graph.WithCapture()}} {
				got, plan := runStock(t, c, tensor.Float32, append(opts, graph.WithBackend(b))...)
				wantOnDevice(t, plan)
				for i := range want {
					testutil.Within(t, fmt.Sprint("result ", i), got[i], want[i], 1e-5)
				}
			}
		})
	}
}
