package graph_test

import (
	"errors"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/dist"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// building is held while ranks build graphs: Gorgonia's functions share constants.
var building sync.Mutex

// onRanks calls f for each of n ranks, each in a goroutine of its own, and returns their errors.
func onRanks(n int, f func(graph.Group) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i, g := range dist.Goroutines(n, dist.Options{}) {
		wg.Go(func() {
			if errs[i] = f(g); errs[i] != nil {
				g.Fail(errs[i])
			}
			errs[i] = errors.Join(errs[i], g.Close())
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// regression is a net of two layers with a loss that is a mean over the rows of x.
type regression struct {
	graph   *G.ExprGraph
	x, y    *G.Node
	cost    *G.Node
	weights G.Nodes
}

func newRegression(rows int) (n regression, err error) {
	building.Lock()
	defer building.Unlock()
	g := G.NewGraph()
	n.graph = g
	matrix := func(name string, from int, scale float64, rows, cols int) *G.Node {
		data := make([]float64, rows*cols)
		for i, v := range testutil.Normal(uint64(from), len(data)) {
			data[i] = scale * v
		}
		return G.NewMatrix(g, tensor.Float64, G.WithShape(rows, cols), G.WithName(name),
			G.WithValue(tensor.New(tensor.WithShape(rows, cols), tensor.WithBacking(data))))
	}
	n.x, n.y = matrix("x", 1, 1, rows, 3), matrix("y", 2, 1, rows, 2)
	n.weights = G.Nodes{matrix("w0", 3, 0.5, 3, 4), matrix("w1", 4, 0.5, 4, 2)}
	h := G.Must(G.Tanh(G.Must(G.Mul(n.x, n.weights[0]))))
	d := G.Must(G.Sub(G.Must(G.Mul(h, n.weights[1])), n.y))
	n.cost = G.Must(G.Mean(G.Must(G.Square(d))))
	_, err = graph.Grad(n.cost, n.weights...)
	return n, err
}

// train returns the losses and the weights of some steps; rank r of several gets its part of each batch.
func (n regression) train(g graph.Group, b graph.Backend, steps int, opts ...graph.Option) (losses, weights []float64,
	err error) {
	solver, err := optim.NewAdamW(optim.WithLR(0.02), optim.WithBackend(b))
	if err != nil {
		return nil, nil, err
	}
	moved, err := graph.MoveInputs(b, n.weights...)
	if err != nil {
		return nil, nil, err
	}
	opts = append(opts, graph.WithBackend(b), graph.WithOptimizer(solver, n.weights...))
	rank := 0
	if g != nil {
		opts, rank = append(opts, graph.WithGroup(g)), g.Rank()
	}
	m, err := graph.NewMachine(n.graph, opts...)
	if err != nil {
		return nil, nil, err
	}
	loss, err := m.AsyncReader(n.cost)
	if err != nil {
		return nil, nil, err
	}
	for step := range steps {
		for i, node := range []*G.Node{n.x, n.y} {
			to := node.Value().Data().([]float64)
			all := testutil.Normal(uint64(100+2*step+i), 24*node.Shape()[1])
			copy(to, all[rank*len(to):])
		}
		if err := errors.Join(m.Step(), loss.Fetch()); err != nil {
			return nil, nil, err
		}
		x, err := loss.Next()
		if err != nil {
			return nil, nil, err
		}
		losses = append(losses, x)
	}
	if err := m.Synchronize(); err != nil {
		return nil, nil, err
	}
	for _, w := range n.weights {
		v, err := graph.HostTensor(w)
		if err != nil {
			return nil, nil, err
		}
		weights = append(weights, v.Data().([]float64)...)
	}
	return losses, weights, errors.Join(m.Close(), moved.Close(), solver.Close())
}

// TestRanksTrainAsOne: a batch in parts on several ranks gives the losses and weights of the whole batch on one, and
// all ranks have the same bits, with whole and with sharded states, on the CPU and on a device, captured or not.
func TestRanksTrainAsOne(t *testing.T) {
	const steps = 12
	one := testutil.Must(newRegression(24))(t)
	wantLosses, want, err := one.train(nil, graph.NewCPU(1), steps)
	require.NoError(t, err)
	for _, size := range []int{1, 2, 3, 8} {
		var first []float64
		for i := range 8 {
			device, capture, sharded := i&1 != 0, i&2 != 0, i&4 != 0
			if capture && !device {
				continue
			}
			losses, weights := make([][]float64, size), make([][]float64, size)
			require.NoError(t, onRanks(size, func(g graph.Group) (err error) {
				n, err := newRegression(24 / size)
				if err != nil {
					return err
				}
				b := graph.NewCPU(1)
				if device {
					b = fakedevice.New()
				}
				opts := []graph.Option{graph.WithPolicy(graph.Policy{BucketBytes: 64})}
				if capture {
					opts = append(opts, graph.WithCapture())
				}
				if sharded {
					opts = append(opts, graph.WithShardedStates())
				}
				losses[g.Rank()], weights[g.Rank()], err = n.train(g, b, steps, opts...)
				return err
			}), "%d ranks, %b", size, i)
			for step := range steps {
				mean := 0.0
				for r := range size {
					mean += losses[r][step] / float64(size)
				}
				require.InDelta(t, wantLosses[step], mean, 1e-12, "%d ranks, %b, step %d", size, i, step)
			}
			for r := range size {
				testutil.Within(t, "weights", weights[r], want, 1e-12)
				if first == nil {
					first = weights[r]
				}
				require.Equal(t, first, weights[r], "%d ranks, %b, rank %d", size, i, r)
			}
		}
	}
}

// TestRanksAddMicroBatches: the gradients of several runs are averaged once, in the Step.
func TestRanksAddMicroBatches(t *testing.T) {
	for _, device := range []bool{false, true} {
		weights := make([][]float64, 2)
		require.NoError(t, onRanks(2, func(g graph.Group) error {
			n, err := newRegression(3)
			if err != nil {
				return err
			}
			b := graph.NewCPU(1)
			if device {
				b = fakedevice.New()
			}
			weights[g.Rank()], err = n.accumulate(g, b, 4)
			return err
		}))
		one := testutil.Must(newRegression(3))(t)
		want := testutil.Must(one.accumulate(nil, graph.NewCPU(1), 8))(t)
		testutil.Within(t, "weights", weights[0], want, 1e-12)
		require.Equal(t, weights[0], weights[1])
	}
}

// accumulate returns the weights after three steps of so many micro-batches; two ranks share eight.
func (n regression) accumulate(g graph.Group, b graph.Backend, micro int) ([]float64, error) {
	solver, err := optim.NewAdamW(optim.WithLR(0.02), optim.WithBackend(b))
	if err != nil {
		return nil, err
	}
	moved, err := graph.MoveInputs(b, n.weights...)
	if err != nil {
		return nil, err
	}
	opts, rank := []graph.Option{graph.WithBackend(b), graph.WithGradSums(), graph.WithCapture(),
		graph.WithOptimizer(solver, n.weights...)}, 0
	if g != nil {
		opts, rank = append(opts, graph.WithGroup(g)), g.Rank()
	}
	m, err := graph.NewMachine(n.graph, opts...)
	if err != nil {
		return nil, err
	}
	for step := range 3 {
		if err := solver.SetGradScale(float64(micro)); err != nil {
			return nil, err
		}
		for i := range micro {
			for j, node := range []*G.Node{n.x, n.y} {
				to := node.Value().Data().([]float64)
				copy(to, testutil.Normal(uint64(1000*step+10*(rank*micro+i)+j), len(to)))
			}
			run := m.RunAll
			if i == micro-1 {
				run = m.Step
			}
			if err := run(); err != nil {
				return nil, err
			}
		}
	}
	if err := errors.Join(m.Synchronize(), moved.Download()); err != nil {
		return nil, err
	}
	var list []float64
	for _, w := range n.weights {
		v, err := graph.HostTensor(w)
		if err != nil {
			return nil, err
		}
		list = append(list, v.Data().([]float64)...)
	}
	return list, errors.Join(m.Close(), moved.Close(), solver.Close())
}

// TestRanksDiffer: ranks with other inputs, other weights or another plan end with an error on all ranks that says so,
// and so does a rank whose run fails.
func TestRanksDiffer(t *testing.T) {
	for name, c := range map[string]struct {
		change func(n *regression)
		opts   []graph.Option
		want   string
	}{
		"batch": {func(n *regression) { *n, _ = newRegression(5) }, nil,
			"rank 1 has input x \"float64 (5, 3)\", rank 0 has \"float64 (4, 3)\""},
		"weights": {func(n *regression) { n.weights[1].Value().Data().([]float64)[3]++ }, nil,
			"rank 1 has other weights than rank 0 after step 1"},
		"plan": {func(*regression) {}, []graph.Option{graph.WithShardedStates()}, "rank 1 has plan"},
		"run": {func(n *regression) { n.x.Value().Data().([]float64)[0] = math.NaN() },
			[]graph.Option{graph.WithNaNWatch()}, "NaN"},
	} {
		t.Run(name, func(t *testing.T) {
			errs := make([]error, 2)
			err := onRanks(2, func(g graph.Group) (err error) {
				n, err := newRegression(4)
				if err != nil {
					return err
				}
				var opts []graph.Option
				if g.Rank() == 1 {
					c.change(&n)
					opts = c.opts
				}
				solver, err := optim.NewAdamW()
				if err != nil {
					return err
				}
				m, err := graph.NewMachine(n.graph, append(opts, graph.WithGroup(g), graph.WithOptimizer(solver,
					n.weights...))...)
				if err == nil {
					err = errors.Join(m.Step(), m.Close())
				}
				errs[g.Rank()] = err
				return err
			})
			require.Error(t, err)
			for _, err := range errs {
				require.ErrorContains(t, err, c.want)
			}
		})
	}
}

// TestOneRankIsNone: a group of one rank changes no plan, and the refusals of groups name the option.
func TestOneRankIsNone(t *testing.T) {
	n := testutil.Must(newRegression(4))(t)
	plan := func(opts ...graph.Option) (string, error) {
		solver := testutil.Must(optim.NewAdamW())(t)
		p, err := graph.NewPlan(n.graph, append(opts, graph.WithOptimizer(solver, n.weights...))...)
		return p.String(), err
	}
	without, one := testutil.Must(plan())(t), testutil.Closing(dist.Goroutines(1, dist.Options{})[0], nil)(t)
	require.Equal(t, without, testutil.Must(plan(graph.WithGroup(one)))(t))
	require.Equal(t, without, testutil.Must(plan(graph.WithGroup(one), graph.WithShardedStates()))(t))
	two := dist.Goroutines(2, dist.Options{})[0]
	defer two.Close()
	defer two.Fail(errors.New("the end"))
	_, err := plan(graph.WithGroup(nil))
	require.ErrorContains(t, err, "the group is nil")
	_, err = plan(graph.WithGroup(two), graph.WithPolicy(graph.Policy{CompressGrads: true}))
	require.ErrorContains(t, err, "cpu computes in float32")
	_, err = graph.NewPlan(n.graph, graph.WithGroup(two), graph.WithGradSums())
	require.ErrorContains(t, err, "WithGradSums needs WithOptimizer")
	y := G.Must(ops.AllReduce(n.x, 2))
	_, err = graph.NewPlan(y.Graph())
	require.ErrorContains(t, err, "is for 2 ranks, the machine is one of 1: see WithGroup")
	tape := G.NewTapeMachine(y.Graph())
	require.ErrorContains(t, tape.RunAll(), "want a graph.Machine with WithGroup")
	require.NoError(t, tape.Close())
}

// TestCompressedGradients: gradients in bfloat16 on the wire come near those in float32.
func TestCompressedGradients(t *testing.T) {
	var lists [2][]float64
	for i := range lists {
		require.NoError(t, onRanks(2, func(g graph.Group) error {
			building.Lock()
			net := G.NewGraph()
			input := func(name string, seed uint64, rows, cols int) *G.Node {
				v := tensor.New(tensor.WithShape(rows, cols), tensor.WithBacking(testutil.Convert[float32](testutil.Normal(seed,
					rows*cols))))
				return G.NewMatrix(net, tensor.Float32, G.WithShape(rows, cols), G.WithName(name), G.WithValue(v))
			}
			w := input("w", 1, 8, 8)
			cost := G.Must(G.Sum(G.Must(G.Square(G.Must(ops.Linear(input("x", uint64(2+g.Rank()), 4, 8), w))))))
			_, err := graph.Grad(cost, w)
			building.Unlock()
			if err != nil {
				return err
			}
			m, err := graph.NewMachine(net, graph.WithGroup(g), graph.WithBackend(fakedevice.NewHalf()),
				graph.WithPolicy(graph.Policy{CompressGrads: i == 1}))
			if err != nil {
				return err
			}
			if err := m.RunAll(); err != nil {
				return err
			}
			grad, err := w.Grad()
			if err != nil {
				return err
			}
			if g.Rank() == 0 {
				lists[i] = testutil.Convert[float64](grad.Data().([]float32))
			}
			return m.Close()
		}))
	}
	require.NotEqual(t, lists[0], lists[1])
	testutil.Within(t, "gradient", lists[1], lists[0], 0.01)
}
