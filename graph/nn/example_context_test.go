package nn_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/dist"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// A sequence of 64 tokens over two ranks, here goroutines: each has 32 of them, and the outputs and gradients of one rank
// that has all.
func ExampleWithContext() {
	const seq, dim = 64, 32
	config := nn.NSAConfig{
		Dim: dim, Heads: 4, KVHeads: 2, KeyDim: 8, ValueDim: 8, GateHidden: 16,
		Params: ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 4, Window: 16},
	}
	all := testutil.Normal(1, seq*dim)

	// build returns the output of a layer and its weights, in a graph whose cost is a mean over a rank's tokens.
	build := func(rank, ranks int) (tokens []int, y *G.Node, weights G.Nodes) {
		tokens, err := nn.ContextTokens(rank, ranks, seq)
		check(err)
		rows := min(2, ranks) // a rank's two chunks of the sequence, or all of it
		var own []float64
		for _, t := range tokens {
			own = append(own, all[t*dim:][:dim]...)
		}
		x := G.NewTensor(G.NewGraph(), tensor.Float64, 3, G.WithName("x"),
			G.WithValue(tensor.New(tensor.WithShape(rows, len(tokens)/rows, dim), tensor.WithBacking(own))))
		layer, err := nn.NewNSA(x.Graph(), "attn.", config, nn.Random(tensor.Float64, 1))
		check(err)
		y, err = layer.Apply(x, nn.WithContext(rank, ranks))
		check(err)
		weights = layer.Learnables()
		_, err = G.Grad(G.Must(G.Mean(G.Must(G.Square(y)))), weights...)
		check(err)
		return tokens, y, weights
	}
	run := func(y, w *G.Node, opts ...graph.Option) (output, grad []float64) {
		m, err := graph.NewMachine(y.Graph(), append(opts, graph.WithKeep(y))...)
		check(err)
		check(m.RunAll())
		d, err := w.Grad()
		check(err)
		output, grad = slices.Clone(y.Value().Data().([]float64)), slices.Clone(d.Data().([]float64))
		check(m.Close())
		return output, grad
	}

	_, y, weights := build(0, 1)
	want, wantGrad := run(y, weights[0])
	const ranks = 2
	outputs, grads := make([][]float64, ranks), make([][]float64, ranks)
	var positions [ranks][]int
	var outs, first [ranks]*G.Node
	for rank := range ranks { // one after the other: Gorgonia's functions share constants
		positions[rank], outs[rank], weights = build(rank, ranks)
		first[rank] = weights[0]
	}
	var wg sync.WaitGroup
	for rank, g := range dist.Goroutines(ranks, dist.Options{}) {
		wg.Go(func() {
			outputs[rank], grads[rank] = run(outs[rank], first[rank], graph.WithGroup(g))
			check(errors.Join(g.Close()))
		})
	}
	wg.Wait()
	for rank, tokens := range positions {
		same := true
		for i, t := range tokens {
			same = same && slices.Equal(outputs[rank][i*dim:][:dim], want[t*dim:][:dim])
		}
		fmt.Printf("rank %d has tokens %d to %d and %d to %d, the outputs of one rank: %v, its gradients: %v\n", rank, tokens[0],
			tokens[15], tokens[16], tokens[31], same, testutil.RelErr(grads[rank], wantGrad) < 1e-12)
	}
	// Output:
	// rank 0 has tokens 0 to 15 and 48 to 63, the outputs of one rank: true, its gradients: true
	// rank 1 has tokens 16 to 31 and 32 to 47, the outputs of one rank: true, its gradients: true
}
