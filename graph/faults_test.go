package graph_test

import (
	"errors"
	"fmt"
	"testing"

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
	try(func() error {
		v, err := solver.Norm()
		if err == nil {
			require.Equal(t, all[7], v)
		}
		return err
	})
	try(func() error {
		v, err := graph.HostValue(n.hidden.Value())
		if err == nil {
			all = append(all, numbers(t, v)...)
		}
		return err
	})
	try(func() error {
		times, err := m.Profile()
		if err == nil {
			require.Len(t, times, len(m.Plan().Steps))
		}
		return err
	})
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
