package graph_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestMachineInGoroutines: whatever methods of a machine, its reader and its solver several goroutines call, each call
// succeeds or returns an error. None hangs, and the machine computes the same afterwards.
func TestMachineInGoroutines(t *testing.T) {
	for device, b := range map[string]graph.Backend{"cpu": graph.NewCPU(2), "device": fakedevice.NewHalf()} {
		n := newRandomNet(t, 4, 0, 9)
		m := newMachine(t, n.graph, graph.WithBackend(b), graph.WithCapture(), graph.WithKeep(n.loss))
		require.NoError(t, m.RunAll())
		require.NoError(t, m.RunAll())
		want := numbers(t, n.loss.Value())
		loss := testutil.Must(m.AsyncReader(n.loss))(t)
		step := func() error { return m.RunAndStep(&logSolver{machine: m}, G.NodesToValueGrads(n.weights)) }
		calls := map[string]func() error{
			"RunAll": m.RunAll, "RunAndStep": step, "Profile": func() error { return testutil.Err(m.Profile()) }, "ZeroGrads": m.ZeroGrads,
			"Synchronize": m.Synchronize, "Fetch": loss.Fetch, "Next": func() error { return testutil.Err(loss.Next()) },
			"AsyncReader": func() error {
				r, err := m.AsyncReader(n.loss)
				if err == nil {
					_ = r.Close()
				}
				return err
			},
			"Event": func() error { return testutil.Err(m.NewEvent()) },
			"the rest": func() error {
				m.Reset()
				m.Refresh()
				_, _, _, _, _ = m.Plan().String(), m.Counts(), m.Backend(), m.Stream(), m.HalfCopy(n.weights[0])
				_ = loss.Waiting()
				return nil
			},
		}
		var all sync.WaitGroup
		for name, call := range calls {
			all.Go(func() {
				for range 30 {
					if err := call(); err != nil && !strings.HasPrefix(err.Error(), "graph: ") {
						t.Errorf("%s on %s: %v", name, device, err)
					}
				}
			})
		}
		all.Wait()
		require.NoError(t, m.RunAll())
		require.Equal(t, want, numbers(t, n.loss.Value()))
		for range 4 {
			all.Go(func() { _ = m.Close() })
			all.Go(func() { _ = m.RunAll() })
			all.Go(func() { _ = loss.Close() })
		}
		all.Wait()
		require.NoError(t, m.Close())
		require.ErrorContains(t, m.RunAll(), "closed")
	}
}

// TestMachineCalledByItsOp: an op that calls the machine which runs it gets an error.
func TestMachineCalledByItsOp(t *testing.T) {
	g := G.NewGraph()
	var m *graph.Machine
	var inner error
	calls := &foreign{"calls back", 1, func(v ...G.Value) (G.Value, error) {
		inner = errors.Join(m.RunAll(), m.Close(), m.Synchronize())
		return G.CloneValue(v[0])
	}}
	y := G.Must(G.ApplyOp(calls, vector(g, "x", 1, 2)))
	m = newMachine(t, g)
	require.NoError(t, m.RunAll())
	require.Equal(t, 3, strings.Count(inner.Error(), "in use"))
	require.Equal(t, []float64{1, 2}, numbers(t, y.Value()))
}
