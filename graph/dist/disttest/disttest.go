// Package disttest tests the collective ops, training on several ranks, and layers whose sequences lie over them, on
// any backend.
package disttest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/dist"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Open opens the backend of a rank. The tests close it.
type Open func(rank int) (graph.Backend, error)

// Building is held while ranks build graphs: Gorgonia's functions share constants.
var Building sync.Mutex

// OnRanks calls f for each of n ranks, each in a goroutine of its own, and returns their errors.
func OnRanks(n int, f func(graph.Group) error) error {
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

// collectives are the collective ops with what they compute: x[r] is the input of rank r, dy[r] the gradient of its
// output.
var collectives = []struct {
	name   string
	apply  func(x *G.Node, ranks int) (*G.Node, error)
	y, dx  func(rank int, in [][]float64) []float64 // of x and of dy
	gather int                                      // by how much the first axis grows: ranks to the power of it
}{
	{"all-reduce", ops.AllReduce, sumOf, sumOf, 0},
	{"mean", ops.AllReduceMean, meanOf, meanOf, 0},
	{"reduce", func(x *G.Node, ranks int) (*G.Node, error) { return ops.Reduce(x, ranks-1, ranks) },
		func(rank int, x [][]float64) []float64 {
			if rank == len(x)-1 {
				return sumOf(rank, x)
			}
			return make([]float64, len(x[0]))
		}, lastOf, 0},
	{"broadcast", func(x *G.Node, ranks int) (*G.Node, error) { return ops.Broadcast(x, ranks-1, ranks) },
		lastOf, func(rank int, dy [][]float64) []float64 {
			if rank == len(dy)-1 {
				return sumOf(rank, dy)
			}
			return make([]float64, len(dy[0]))
		}, 0},
	{"all-gather", ops.AllGather, allOf, partOf, 1},
	{"reduce-scatter", ops.ReduceScatter, partOf, allOf, -1},
	{"gather-sequence", onSequences(2*batch, ops.GatherSequence), sequencesOf, chunksOf, 1},
	{"scatter-sequence", onSequences(batch, ops.ScatterSequence), chunksOf, sequencesOf, -1},
}

// batch is the number of sequences in the inputs of the collectives of sequences.
const batch = 5

// onSequences applies an op to a matrix whose elements are those of so many rows.
func onSequences(rows int, apply func(x *G.Node, ranks int) (*G.Node, error)) func(x *G.Node, ranks int) (*G.Node, error) {
	return func(x *G.Node, ranks int) (*G.Node, error) {
		y, err := apply(G.Must(G.Reshape(x, tensor.Shape{rows, x.Shape().TotalSize() / rows})), ranks)
		if err != nil {
			return nil, err
		}
		return G.Reshape(y, tensor.Shape{y.Shape().TotalSize() / 5, 5})
	}
}

// sequencesOf puts the ranks' first chunks in order, and behind them the second ones in the reverse order.
func sequencesOf(_ int, x [][]float64) (y []float64) {
	n := len(x[0]) / batch / 2
	for b := range batch {
		for _, theirs := range x {
			y = append(y, theirs[2*b*n:][:n]...)
		}
		for _, theirs := range slices.Backward(x) {
			y = append(y, theirs[(2*b+1)*n:][:n]...)
		}
	}
	return y
}

func chunksOf(rank int, x [][]float64) (y []float64) {
	total, ranks := sumOf(rank, x), len(x)
	n := len(total) / batch / ranks / 2
	for b := range batch {
		for _, chunk := range []int{rank, 2*ranks - 1 - rank} {
			y = append(y, total[(2*ranks*b+chunk)*n:][:n]...)
		}
	}
	return y
}

func sumOf(_ int, x [][]float64) []float64 {
	y := make([]float64, len(x[0]))
	for _, theirs := range x {
		for i, v := range theirs {
			y[i] += v
		}
	}
	return y
}

func meanOf(rank int, x [][]float64) []float64 {
	y := sumOf(rank, x)
	for i := range y {
		y[i] /= float64(len(x))
	}
	return y
}

func lastOf(_ int, x [][]float64) []float64 { return x[len(x)-1] }

func allOf(_ int, x [][]float64) (y []float64) {
	for _, theirs := range x {
		y = append(y, theirs...)
	}
	return y
}

func partOf(rank int, x [][]float64) []float64 {
	n := len(x[0]) / len(x)
	return sumOf(rank, x)[rank*n : (rank+1)*n]
}

// Collectives tests the results and gradients of each collective op, in float32 or float64: among all ranks, and among
// the first and the second half of them.
func Collectives(t *testing.T, ranks int, dt tensor.Dtype, open Open) {
	tolerance := map[tensor.Dtype]float64{tensor.Float32: 1e-6, tensor.Float64: 1e-14}[dt]
	for _, c := range collectives {
		for _, among := range []int{ranks, ranks / 2} {
			if among == 0 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d of %d", c.name, among, ranks), func(t *testing.T) {
				rows := map[int]int{-1: 2 * among, 0: 3, 1: 2}[c.gather]
				results := map[int]int{-1: 2, 0: 3, 1: 2 * among}[c.gather]
				x, dy, y, dx := make([][]float64, ranks), make([][]float64, ranks), make([][]float64, ranks),
					make([][]float64, ranks)
				for r := range ranks {
					x[r], dy[r] = testutil.Normal(uint64(1+r), rows*5), testutil.Normal(uint64(100+r), results*5)
				}
				apply := func(x *G.Node, _ int) (*G.Node, error) { return c.apply(x, among) }
				require.NoError(t, OnRanks(ranks, func(g graph.Group) (err error) {
					y[g.Rank()], dx[g.Rank()], err = runCollective(g, apply, dt, open, x[g.Rank()], dy[g.Rank()])
					return err
				}))
				for r := range ranks {
					own := r % among
					testutil.Within(t, "y", y[r], c.y(own, x[r-own:][:among]), tolerance)
					testutil.Within(t, "dx", dx[r], c.dx(own, dy[r-own:][:among]), tolerance)
				}
			})
		}
	}
}

// input adds an input [n,shape...] to g.
func input(g *G.ExprGraph, name string, dt tensor.Dtype, data []float64, shape ...int) *G.Node {
	backing := any(data)
	if dt == tensor.Float32 {
		backing = testutil.Convert[float32](data)
	}
	all := append([]int{len(data) / tensor.Shape(shape).TotalSize()}, shape...)
	v := tensor.New(tensor.WithShape(all...), tensor.WithBacking(backing))
	return G.NewTensor(g, dt, len(all), G.WithShape(all...), G.WithName(name), G.WithValue(v))
}

func floats(v G.Value) ([]float64, error) {
	v, err := graph.HostValue(v)
	if err != nil {
		return nil, err
	}
	if data, ok := v.Data().([]float32); ok {
		return testutil.Convert[float64](data), nil
	}
	return append([]float64(nil), v.Data().([]float64)...), nil
}

// runCollective returns an op's result on a rank, and its gradient for the gradient dy of the result.
func runCollective(g graph.Group, apply func(x *G.Node, ranks int) (*G.Node, error), dt tensor.Dtype, open Open, x,
	dy []float64) (y, dx []float64, err error) {
	result, grad, err := buildCollective(g, apply, dt, x, dy)
	if err != nil {
		return nil, nil, err
	}
	b, err := open(g.Rank())
	if err != nil {
		return nil, nil, err
	}
	m, err := graph.NewMachine(result.Graph(), graph.WithBackend(b), graph.WithGroup(g), graph.WithKeep(result, grad))
	if err != nil {
		return nil, nil, errors.Join(err, b.Close())
	}
	if err = m.RunAll(); err == nil {
		if y, err = floats(result.Value()); err == nil {
			dx, err = floats(grad.Value())
		}
	}
	return y, dx, errors.Join(err, m.Close(), b.Close())
}

// buildCollective returns nodes of the result and of the gradient. The derivative of an input would be averaged over the
// ranks: grad is computed from it before.
func buildCollective(g graph.Group, apply func(x *G.Node, ranks int) (*G.Node, error), dt tensor.Dtype, x, dy []float64) (
	result, grad *G.Node, err error) {
	Building.Lock()
	defer Building.Unlock()
	net := G.NewGraph()
	in := input(net, "x", dt, x, 5)
	out, err := apply(G.Must(G.Neg(in)), g.Size())
	if err != nil {
		return nil, nil, err
	}
	cost := G.Must(G.Sum(G.Must(G.HadamardProd(out, input(net, "dy", dt, dy, 5)))))
	grads, err := graph.Grad(cost, in)
	if err != nil {
		return nil, nil, err
	}
	return G.Must(G.Neg(out)), G.Must(G.Neg(grads[0])), nil
}

// Regression is a net of two layers whose loss is a mean over the rows of X.
type Regression struct {
	X, Y, Cost *G.Node
	Weights    G.Nodes
}

// NewRegression returns a net for batches of so many rows. Ranks have the same weights.
func NewRegression(dt tensor.Dtype, rows int) (n Regression, err error) {
	Building.Lock()
	defer Building.Unlock()
	g := G.NewGraph()
	scaled := func(seed uint64, n int) []float64 {
		list := testutil.Normal(seed, n)
		for i := range list {
			list[i] /= 2
		}
		return list
	}
	n.X, n.Y = input(g, "x", dt, testutil.Normal(1, 3*rows), 3), input(g, "y", dt, testutil.Normal(2, 2*rows), 2)
	n.Weights = G.Nodes{input(g, "w0", dt, scaled(3, 12), 4), input(g, "w1", dt, scaled(4, 8), 2)}
	h := G.Must(G.Tanh(G.Must(G.Mul(n.X, n.Weights[0]))))
	d := G.Must(G.Sub(G.Must(G.Mul(h, n.Weights[1])), n.Y))
	n.Cost = G.Must(G.Mean(G.Must(G.Square(d))))
	_, err = graph.Grad(n.Cost, n.Weights...)
	return n, err
}

// fill makes the rows from row on of a random batch of a step the batch.
func (n Regression) fill(step, row int) {
	for i, node := range []*G.Node{n.X, n.Y} {
		cols := node.Shape()[1]
		all := testutil.Normal(uint64(100+2*step+i), batchRows*cols)[row*cols:]
		switch to := node.Value().Data().(type) {
		case []float64:
			copy(to, all)
		case []float32:
			copy(to, testutil.Convert[float32](all))
		}
	}
}

// batchRows is the number of rows of a step over all ranks and micro-batches.
const batchRows = 24

// Train returns the losses of some steps, each the mean over micro batches, and the weights after them. A rank trains on
// its part of each batch; without a group the batch is whole. It closes b.
func (n Regression) Train(g graph.Group, b graph.Backend, steps, micro int, opts ...graph.Option) (losses,
	weights []float64, err error) {
	defer func() { err = errors.Join(err, b.Close()) }()
	solver, err := optim.NewAdamW(optim.WithLR(0.02))
	if err != nil {
		return nil, nil, err
	}
	moved, err := graph.MoveInputs(b, n.Weights...)
	if err != nil {
		return nil, nil, err
	}
	opts, row := append(opts, graph.WithBackend(b), graph.WithOptimizer(solver, n.Weights...)), 0
	if g != nil {
		opts, row = append(opts, graph.WithGroup(g)), g.Rank()*batchRows/g.Size()
	}
	if micro > 1 {
		opts = append(opts, graph.WithGradSums())
	}
	m, err := graph.NewMachine(n.X.Graph(), opts...)
	if err != nil {
		return nil, nil, errors.Join(err, moved.Close())
	}
	defer func() { err = errors.Join(err, solver.Close(), m.Close(), moved.Close()) }()
	loss, err := m.AsyncReader(n.Cost)
	if err != nil {
		return nil, nil, err
	}
	if err := solver.SetGradScale(float64(micro)); err != nil {
		return nil, nil, err
	}
	for step := range steps {
		sum := 0.0
		for i := range micro {
			n.fill(step, row+i*n.X.Shape()[0])
			run := m.RunAll
			if i == micro-1 {
				run = m.Step
			}
			if err := errors.Join(run(), loss.Fetch()); err != nil {
				return nil, nil, err
			}
			x, err := loss.Next()
			if err != nil {
				return nil, nil, err
			}
			sum += x / float64(micro)
		}
		losses = append(losses, sum)
	}
	if err := m.Synchronize(); err != nil {
		return nil, nil, err
	}
	for _, w := range n.Weights {
		x, err := floats(w.Value())
		if err != nil {
			return nil, nil, err
		}
		weights = append(weights, x...)
	}
	return losses, weights, nil
}

// Training tests that ranks with parts of a batch train as one with the whole batch does on a CPU in float64: with whole
// and with sharded states, with one and with several micro-batches, eager and captured. All ranks have the same bits, and
// all forms with equally many micro-batches do.
func Training(t *testing.T, ranks int, dt tensor.Dtype, open Open) {
	const steps = 12
	tolerance := map[tensor.Dtype]float64{tensor.Float32: 1e-5, tensor.Float64: 1e-12}[dt]
	one, err := NewRegression(tensor.Float64, batchRows)
	require.NoError(t, err)
	wantLosses, want, err := one.Train(nil, graph.NewCPU(1), steps, 1)
	require.NoError(t, err)
	for _, micro := range []int{1, 3} {
		var first []float64
		for form := range 4 {
			opts, name := []graph.Option{graph.WithPolicy(graph.Policy{BucketBytes: 64})}, fmt.Sprintf("%d ranks x %d", ranks, micro)
			if form&1 != 0 {
				opts, name = append(opts, graph.WithCapture()), name+", captured"
			}
			if form&2 != 0 {
				opts, name = append(opts, graph.WithShardedStates()), name+", sharded"
			}
			losses, weights := make([][]float64, ranks), make([][]float64, ranks)
			require.NoError(t, OnRanks(ranks, func(g graph.Group) error {
				n, err := NewRegression(dt, batchRows/ranks/micro)
				if err != nil {
					return err
				}
				b, err := open(g.Rank())
				if err != nil {
					return err
				}
				losses[g.Rank()], weights[g.Rank()], err = n.Train(g, b, steps, micro, opts...)
				return err
			}), name)
			for step := range steps {
				mean := 0.0
				for r := range ranks {
					mean += losses[r][step] / float64(ranks)
				}
				require.InDelta(t, wantLosses[step], mean, tolerance, "%s, step %d", name, step)
			}
			for r := range ranks {
				testutil.Within(t, name, weights[r], want, tolerance)
				if first == nil {
					first = weights[r]
				}
				require.Equal(t, first, weights[r], "%s, rank %d", name, r)
			}
		}
	}
}
