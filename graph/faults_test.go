package graph_test

import (
	"errors"
	"fmt"
	"runtime"
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
	"github.com/gorgonia-nsa/nsa/ops"
)

// train takes four steps on b. If a call fails, train makes it once more. It returns the failures and, in all, the
// losses and norms, the last hidden value and the weights.
func (n *tiny) train(t *testing.T, b graph.Backend, p graph.Precision, opts ...graph.Option) (all []float64,
	failures []error) {
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
	var solver *optim.AdamW
	try(func() (err error) {
		solver = testutil.Must(optim.NewAdamW(optim.WithLR(0.01)))(t) // it has one machine
		m, err = graph.NewMachine(n.graph, append(opts[:len(opts):len(opts)], graph.WithOptimizer(solver, n.weights...))...)
		return err
	})
	var loss, norm *graph.AsyncReader
	try(func() (err error) { loss, err = m.AsyncReader(n.loss); return err })
	for range 4 {
		try(m.Step)
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
	var hidden []float64
	var times []time.Duration
	try(func() (err error) { last, err = solver.Norm(); return err })
	try(func() error {
		v, err := graph.HostValue(n.hidden.Value())
		if err == nil { // Profile changes the value
			hidden = numbers(t, v)
		}
		return err
	})
	try(func() (err error) { times, err = m.Profile(); return err })
	require.Equal(t, all[7], last)
	require.Len(t, times, len(m.Plan().Steps))
	all = append(all, hidden...)
	try(r.Download)
	// A Close that fails has freed everything all the same.
	failures = append(failures, errors.Join(solver.Close(), m.Close(), r.Close()))
	for _, w := range n.weights {
		all = append(all, numbers(t, w.Value())...)
	}
	return all, failures
}

// TestTrainingSurvivesEachFailure makes each call of a device fail in turn. The second try gives the bits of a run
// without failures, and nothing leaks.
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
					if !testutil.Full(t) && (at+len(opts)+int(p))%2 == 0 {
						continue
					}
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
		n := newRandomNet(t, 4, 9)
		still := testutil.Must(optim.NewAdamW(optim.WithLR(0)))(t)
		testutil.Closing(graph.MoveInputs(b, n.weights...))(t)
		m := newMachine(t, n.graph, graph.WithBackend(b), graph.WithCapture(), graph.WithKeep(n.loss),
			graph.WithOptimizer(still, n.weights...))
		require.NoError(t, m.RunAll())
		require.NoError(t, m.RunAll())
		want := numbers(t, n.loss.Value())
		loss := testutil.Must(m.AsyncReader(n.loss))(t)
		calls := map[string]func() error{
			"RunAll": m.RunAll, "Step": m.Step, "Profile": func() error { return testutil.Err(m.Profile()) },
			"ZeroGrads":   m.ZeroGrads,
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
				_, _, _, _ = m.Plan().String(), m.Counts(), m.Backend(), m.Stream()
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

// requireConstantHeap calls f again and again. Neither the heap, by more than 60 bytes a call, nor the number of
// goroutines may grow. Tables that fill up once, and goroutines that end a little later, grow in the first tries alone.
func requireConstantHeap(t *testing.T, what string, f func() error) {
	t.Helper()
	heap := func() int {
		var s runtime.MemStats
		runtime.GC()
		runtime.GC() // the first one only moves the content of pools
		runtime.ReadMemStats(&s)
		return int(s.HeapAlloc)
	}
	calls := testutil.Tries(t, 30, 1000)
	most := 4<<10 + 60*calls
	grown, goroutines := 0, 0
	for range 5 {
		before, running := heap(), runtime.NumGoroutine()
		for range calls {
			require.NoError(t, f(), what)
		}
		if grown, goroutines = heap()-before, runtime.NumGoroutine()-running; grown <= most && goroutines <= 0 {
			return
		}
	}
	t.Errorf("%s: in %d calls the heap grows by %d bytes, want at most %d; %d more goroutines", what, calls, grown, most,
		goroutines)
}

// TestRandomGraphsKeepTheirHeap: runs of random graphs, on the CPU and on a device, with and without recordings,
// gradients and kept values.
func TestRandomGraphsKeepTheirHeap(t *testing.T) {
	for seed := uint64(1); seed <= uint64(testutil.Tries(t, 40, 200)); seed++ {
		r := withGradients(t, seed, 1+int(seed)%14)
		if seed%4 == 0 {
			r = newRandom(t, seed, 1+int(seed)%14)
		}
		opts := randomMachines(seed)
		if seed%3 == 0 {
			opts = append(opts, graph.WithKeep(r.nodes...))
		}
		m := testutil.Must(graph.NewMachine(r.graph, opts...))(t)
		requireConstantHeap(t, fmt.Sprint("seed ", seed), m.RunAll)
		require.NoError(t, m.Close())
	}
}

// elsewhere is an op that gets memory for its result and returns another value.
type elsewhere struct{ foreign }

func (*elsewhere) ReturnsPtr() bool                                          { return true }
func (*elsewhere) CallsExtern() bool                                         { return true }
func (o *elsewhere) UsePreallocDo(_ G.Value, in ...G.Value) (G.Value, error) { return o.do(in...) }

// leaky is a graph whose ops on the host and kernels read each other's results: weights that are read several times,
// stock ops around ops of this module, and one-element tensors.
func leaky(t *testing.T) *network {
	n := &network{graph: G.NewGraph()}
	w, u, h := n.input("w", 8, 8), n.input("u", 8, 8), n.input("h", 2, 8)
	for i := range 3 {
		h = G.Must(G.Tanh(G.Must(G.Add(G.Must(G.Mul(n.input(fmt.Sprint("x", i), 2, 8), w)), G.Must(G.Mul(h, u))))))
	}
	h = G.Must(ops.RMSNorm(h, n.input("gain", 8), 1e-6))
	h = G.Must(ops.SiLU(G.Must(G.HadamardProd(h, h))))
	n.cost = G.Must(G.Mean(G.Must(G.Square(h))))
	for _, shape := range [][]int{{1}, {1, 1}, {1, 1, 1}} {
		x := n.input(fmt.Sprint("one element ", shape), shape...)
		y := G.Must(ops.SiLU(G.Must(G.Exp(G.Must(G.HadamardProd(x, x))))))
		part := G.Must(G.Concat(0, y, x))
		n.cost = G.Must(G.Add(n.cost, G.Must(G.Add(G.Must(G.Sum(part)), G.Must(G.Sum(G.Must(G.Slice(part, G.S(0, 1)))))))))
	}
	clones := func(v ...G.Value) (G.Value, error) { return G.CloneValue(v[0]) }
	G.Must(ops.SiLU(G.Must(G.ApplyOp(&elsewhere{foreign{"elsewhere", 1, clones}}, h))))
	a := n.input("matrix of one", 1, 1)
	n.cost = G.Must(G.Add(n.cost, G.Must(G.Sum(G.Must(ops.SiLU(G.Must(G.Mul(a, n.input("row", 1, 3)))))))))
	n.cost = G.Must(G.Add(n.cost, G.Must(G.Sum(G.Must(G.Mul(a, a))))))
	n.let(t, 1)
	return n
}

// TestMachinesKeepTheirHeap: whatever a machine does again and again, its heap and the goroutines stay constant.
func TestMachinesKeepTheirHeap(t *testing.T) {
	for i, b := range []graph.Backend{graph.NewCPU(2), fakedevice.New()} {
		on, capture := graph.WithBackend(b), graph.WithCapture()
		n := func() *network { return leaky(t).grad(t) }
		repeat := func(name string, f func() error) { requireConstantHeap(t, fmt.Sprint(name, " on backend ", i), f) }
		repeat("runs", newMachine(t, n().graph, on).RunAll)
		repeat("forward alone", newMachine(t, leaky(t).graph, on).RunAll)

		sums := n()
		m, calls := newMachine(t, sums.graph, on, capture, graph.WithGradSums()), 0
		repeat("recorded, with sums", func() error {
			if calls++; calls%3 == 0 {
				return errors.Join(G.NewVanillaSolver().Step(G.NodesToValueGrads(sums.in)), m.ZeroGrads(), m.RunAll())
			}
			return m.RunAll()
		})
		values := n()
		recorded := newMachine(t, values.graph, on, capture)
		repeat("new values", func() error { values.let(t, 2); return recorded.RunAll() })

		broken := n()
		G.Must(G.ApplyOp(&foreign{"fails", 1, func(v ...G.Value) (G.Value, error) {
			if calls++; calls%3 > 0 {
				return nil, errors.New("today")
			}
			return G.CloneValue(v[0])
		}}, G.Must(G.Tanh(broken.in[0].Deriv()))))
		failing := newMachine(t, broken.graph, on)
		repeat("runs that fail", func() error { _ = failing.RunAll(); return nil })

		read := n()
		G.Read(read.in[0].Deriv(), new(G.Value))
		G.Read(read.cost, new(G.Value))
		repeat("reads and kept values", newMachine(t, read.graph, on, graph.WithKeep(read.graph.AllNodes()...)).RunAll)
		watched := newMachine(t, n().graph, on, graph.WithNaNWatch())
		repeat("watched and timed", func() error { return testutil.Err(watched.Profile()) })

		again := n()
		repeat("new machines", func() error {
			m, err := graph.NewMachine(again.graph, on, capture)
			return errors.Join(err, m.RunAll(), m.RunAll(), m.Close())
		})
		repeat("machines that cannot be made", func() error {
			require.Error(t, testutil.Err(graph.NewMachine(again.graph, on, graph.WithKeep(nil))))
			return nil
		})
		repeat("plans", func() error { return testutil.Err(graph.NewPlan(again.graph, on)) })
		shown := run(t, again.graph, on)
		repeat("readers", func() error {
			r, err := shown.AsyncReader(again.cost)
			if err != nil {
				return err
			}
			return errors.Join(r.Fetch(), testutil.Err(r.Next()), r.Close())
		})

		net := newRandomNet(t, 3, 9)
		x := newTrainer(t, b, true, net.weights, capture, graph.WithRecompute(net.inner[len(net.inner)-1]))
		loss := testutil.Must(x.AsyncReader(net.loss))(t)
		repeat("steps of a solver", func() error {
			return errors.Join(x.Step(), loss.Fetch(), testutil.Err(loss.Next()), x.moved.Download())
		})
		x.close(t)
		w := single(G.NewGraph(), "w", func(int) float64 { return 1 }, 64)
		repeat("resident values", func() error {
			r, err := graph.MoveInputs(b, w)
			if err != nil {
				return err
			}
			return errors.Join(r.Download(), r.Upload(), r.Close())
		})
	}
}
