package graph_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// train takes four steps on b. If a call fails, train makes it once more. It returns the failures and, in all, the losses
// and norms, the last hidden value and the weights.
func (n *tiny) train(t *testing.T, b graph.Backend, p graph.Precision, opts ...graph.Option) (all []float64, failures []error) {
	try := func(f func() error) {
		t.Helper()
		if err := f(); err != nil {
			failures = append(failures, err)
			require.NoError(t, f(), "after %v", err)
		}
	}
	var r *graph.Resident
	try(func() (err error) { r, err = graph.MoveInputs(b, n.weights...); return err })
	var m *graph.Machine
	opts = append(opts, graph.WithBackend(b), graph.WithPrecision(p), graph.WithKeep(n.loss, n.hidden))
	try(func() (err error) { m, err = graph.NewMachine(n.graph, opts...); return err })
	solver := testutil.Must(optim.NewAdamW(optim.WithMachine(m), optim.WithLR(0.01)))(t)
	var loss, norm *graph.AsyncReader
	try(func() (err error) { loss, err = m.AsyncReader(n.loss); return err })
	for range 4 {
		try(func() error { return m.RunAndStep(solver, G.NodesToValueGrads(n.weights)) })
		if norm == nil {
			try(func() (err error) { norm, err = solver.NormReader(); return err })
		}
		for _, r := range []*graph.AsyncReader{loss, norm} {
			try(r.Fetch)
			try(m.Synchronize)
			x, err := r.Next()
			if err != nil { // the copy is lost, the value is not
				failures = append(failures, err)
				require.NoError(t, r.Fetch())
				x = testutil.Must(r.Next())(t)
			}
			all = append(all, x)
		}
	}
	require.Equal(t, 4, solver.Steps())
	var last float64
	var hidden G.Value
	var times []time.Duration
	try(func() (err error) { last, err = solver.Norm(); return err })
	try(func() (err error) { hidden, err = graph.HostValue(n.hidden.Value()); return err })
	try(func() (err error) { times, err = m.Profile(); return err })
	require.Equal(t, all[7], last)
	require.Len(t, times, len(m.Plan().Steps))
	all = append(all, numbers(t, hidden)...)
	try(r.Download)
	// A Close that fails has freed everything all the same.
	failures = append(failures, errors.Join(solver.Close(), m.Close(), r.Close()))
	for _, w := range n.weights {
		all = append(all, numbers(t, w.Value())...)
	}
	return all, failures
}

// TestTrainingSurvivesEachFailure makes each call of a device fail in turn. The second try gives the bits of a run without failures, and
// nothing leaks.
func TestTrainingSurvivesEachFailure(t *testing.T) {
	for _, p := range []graph.Precision{graph.F32, graph.BF16} {
		for _, opts := range [][]graph.Option{nil, {graph.WithCapture()}} {
			for _, read := range []bool{false, true} {
				net := func() *tiny {
					n := newTiny(t)
					if read {
						G.Read(n.loss, new(G.Value))
					}
					return n
				}
				f := fakedevice.NewHalf()
				want, failures := net().train(t, f, p, opts...)
				require.NoError(t, errors.Join(failures...))
				for at := 1; at <= f.Calls; at++ {
					t.Run(fmt.Sprintf("%v/%d options/read %v/%d", p, len(opts), read, at), func(t *testing.T) {
						again := fakedevice.NewHalf()
						again.FailAt = at
						got, failures := net().train(t, again, p, opts...)
						require.ErrorContains(t, errors.Join(failures...), again.Failed+" fails")
						require.NotContains(t, errors.Join(failures...).Error(), "panic")
						require.Equal(t, want, got, "after %v", failures)
						require.Zero(t, again.Streams)
						require.Zero(t, again.MemoryInUse)
					})
				}
			}
		}
	}
}

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
