package graph_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// ranks are groups among goroutines.
type ranks struct {
	mu    sync.Mutex
	cond  *sync.Cond
	size  int
	round int
	what  string
	data  [][]byte
	all   [][]byte
	err   error
	done  chan struct{}
}

type rank struct {
	*ranks
	number int
}

func newRanks(n int) []graph.Group {
	r := &ranks{size: n, done: make(chan struct{})}
	r.cond = sync.NewCond(&r.mu)
	list := make([]graph.Group, n)
	for i := range list {
		list[i] = &rank{r, i}
	}
	return list
}

func (r *rank) Rank() int { return r.number }
func (r *rank) Size() int { return r.size }

func (r *rank) AllGather(what string, data []byte) ([][]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.data == nil {
		r.data, r.what = make([][]byte, r.size), what
	}
	if r.what != what && r.err == nil {
		r.err = fmt.Errorf("rank %d came to %s, others to %s", r.number, what, r.what)
		r.cond.Broadcast()
	}
	r.data[r.number] = append([]byte{}, data...)
	round, missing := r.round, 0
	for _, d := range r.data {
		if d == nil {
			missing++
		}
	}
	if missing == 0 {
		r.all, r.data = r.data, nil
		r.round++
		r.cond.Broadcast()
	}
	for r.round == round && r.err == nil {
		r.cond.Wait()
	}
	if r.err != nil {
		return nil, r.err
	}
	var all [][]byte
	for _, d := range r.all {
		all = append(all, append([]byte{}, d...))
	}
	return all, nil
}

func (r *rank) Watch(what string, done func() (bool, error)) {}

func (r *rank) Fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = fmt.Errorf("rank %d: %w", r.number, err)
		close(r.done)
		r.cond.Broadcast()
	}
}

func (r *rank) Done() <-chan struct{} { return r.done }

func (r *rank) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// onRanks calls f for each of n ranks, each in a goroutine of its own, and returns their errors.
func onRanks(n int, f func(graph.Group) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i, g := range newRanks(n) {
		wg.Go(func() {
			if errs[i] = f(g); errs[i] != nil {
				g.Fail(errs[i])
			}
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
