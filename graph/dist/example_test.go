package dist_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/dist"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// An MLP of Gorgonia's own ops on three ranks.
func Example_mlp() {
	compare(3, func(rows int) *model {
		m := newModel(rows)
		h := G.Must(G.Mul(m.x, m.weight("w0", columns, 16)))
		h = G.Must(G.Rectify(G.Must(G.BroadcastAdd(h, m.weight("b0", 1, 16), nil, []byte{0}))))
		return m.withLoss(G.Must(G.Mul(h, m.weight("w1", 16, 1))))
	})
	// Output: loss from 3.4 to 0.02, 3 ranks as one machine: true
}

// An RNN of Gorgonia's own ops on two ranks, which share the moments of AdamW. It reads the columns of x two at a time.
func Example_rnn() {
	compare(2, func(rows int) *model {
		m := newModel(rows)
		in, hidden := m.weight("in", 2, 8), m.weight("hidden", 8, 8)
		h := G.Must(G.Tanh(G.Must(G.Mul(G.Must(G.Slice(m.x, nil, G.S(0, 2))), in))))
		for at := 2; at < columns; at += 2 {
			now := G.Must(G.Mul(G.Must(G.Slice(m.x, nil, G.S(at, at+2))), in))
			h = G.Must(G.Tanh(G.Must(G.Add(now, G.Must(G.Mul(h, hidden))))))
		}
		return m.withLoss(G.Must(G.Mul(h, m.weight("out", 8, 1))))
	}, graph.WithShardedStates())
	// Output: loss from 0.7 to 0.08, 2 ranks as one machine: true
}

const batchRows, columns = 12, 8 // of x, over all ranks

// model is a graph whose loss is a mean over the rows of a batch.
type model struct {
	x, y, loss *G.Node // [rows,columns], [rows,1], scalar
	weights    G.Nodes
}

func newModel(rows int) *model {
	g := G.NewGraph()
	input := func(name string, cols int) *G.Node {
		return G.NewMatrix(g, tensor.Float64, G.WithShape(rows, cols), G.WithName(name))
	}
	return &model{x: input("x", columns), y: input("y", 1)}
}

// weight adds a weight, which is equal on all ranks.
func (m *model) weight(name string, rows, cols int) *G.Node {
	data := testutil.Normal(uint64(len(m.weights)), rows*cols)
	for i := range data {
		data[i] /= math.Sqrt(float64(rows))
	}
	w := G.NewMatrix(m.x.Graph(), tensor.Float64, G.WithShape(rows, cols), G.WithName(name),
		G.WithValue(tensor.New(tensor.WithShape(rows, cols), tensor.WithBacking(data))))
	m.weights = append(m.weights, w)
	return w
}

// withLoss adds the mean of squared errors, and its gradients.
func (m *model) withLoss(prediction *G.Node) *model {
	m.loss = G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(prediction, m.y))))))
	_, err := G.Grad(m.loss, m.weights...)
	check(err)
	return m
}

// train takes steps with the rows of each batch that begin with row first. It returns the losses and the weights.
func (m *model) train(first int, opts ...graph.Option) (losses, weights []float64) {
	solver, err := optim.NewAdamW(optim.WithLR(0.03))
	check(err)
	machine, err := graph.NewMachine(m.x.Graph(), append(opts, graph.WithOptimizer(solver, m.weights...),
		graph.WithKeep(m.loss))...)
	check(err)
	for step := range 40 {
		r, rows := rand.New(rand.NewPCG(1, uint64(step))), m.x.Shape()[0]
		x, y := make([]float64, batchRows*columns), make([]float64, batchRows)
		for i := range x {
			x[i] = r.NormFloat64()
			y[i/columns] += []float64{0.25, -0.25}[i%2] * x[i]
		}
		check(G.Let(m.x, tensor.New(tensor.WithShape(rows, columns), tensor.WithBacking(x[first*columns:][:rows*columns]))))
		check(G.Let(m.y, tensor.New(tensor.WithShape(rows, 1), tensor.WithBacking(y[first:][:rows]))))
		check(machine.Step())
		losses = append(losses, m.loss.Value().Data().(float64))
	}
	for _, w := range m.weights {
		weights = append(weights, w.Value().Data().([]float64)...)
	}
	check(machine.Close())
	check(solver.Close())
	return losses, weights
}

// compare trains with several ranks and with one machine that has the whole batches. The mean of the ranks' losses must
// be its loss in each step, and the weights of each rank its weights.
func compare(ranks int, build func(rows int) *model, opts ...graph.Option) {
	wantLosses, wantWeights := build(batchRows).train(0)
	models := make([]*model, ranks)
	for rank := range models { // one after the other: Gorgonia's functions share constants
		models[rank] = build(batchRows / ranks)
	}
	losses, weights := make([][]float64, ranks), make([][]float64, ranks)
	var wg sync.WaitGroup
	for rank, g := range dist.Goroutines(ranks, dist.Options{}) {
		wg.Go(func() {
			mine := append(slices.Clone(opts), graph.WithGroup(g))
			losses[rank], weights[rank] = models[rank].train(rank*batchRows/ranks, mine...)
			check(g.Close())
		})
	}
	wg.Wait()
	mean, same := make([]float64, len(wantLosses)), true
	for rank := range ranks {
		for step, loss := range losses[rank] {
			mean[step] += loss / float64(ranks)
		}
		same = same && testutil.RelErr(weights[rank], wantWeights) < 1e-6
	}
	same = same && testutil.RelErr(mean, wantLosses) < 1e-6
	fmt.Printf("loss from %.1f to %.2f, %d ranks as one machine: %v\n", mean[0], mean[len(mean)-1], ranks, same)
}
