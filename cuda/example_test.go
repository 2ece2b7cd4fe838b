package cuda_test

import (
	"errors"
	"fmt"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

var check = testutil.Check

// regression returns the loss of a linear layer and SiLU on fixed data, with the gradient of its weight.
func regression() (g *G.ExprGraph, loss *G.Node, learnables G.Nodes) {
	g = G.NewGraph()
	x := G.NewMatrix(g, tensor.Float32, G.WithShape(64, 16), G.WithName("x"), G.WithInit(G.Gaussian(0, 1)))
	w := G.NewMatrix(g, tensor.Float32, G.WithShape(16, 16), G.WithName("w"), G.WithInit(G.GlorotN(1)))
	y := G.Must(ops.SiLU(G.Must(ops.Linear(x, w))))
	loss = G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(x, y))))))
	_, err := graph.Grad(loss, w)
	check(err)
	return g, loss, G.Nodes{w}
}

// Training on the first GPU, or on the CPU where there is none. cuda.Open(0) insists on the GPU.
func ExampleSelect() {
	g, loss, learnables := regression() // any graph with gradients, stock ops included

	b, err := cuda.Select("auto") // the first GPU, or the CPU; cuda.Open(0) insists on the GPU
	check(err)
	precision := graph.F32
	if _, gpu := b.(*cuda.Backend); gpu {
		precision = graph.BF16 // activations; weights, their gradients, sums and logits stay float32
	}
	weights, err := graph.MoveInputs(b, learnables...) // they stay on the device until Close
	check(err)
	m, err := graph.NewMachine(g, graph.WithBackend(b), graph.WithPrecision(precision), graph.WithCapture(),
		graph.WithKeep(loss))
	check(err)
	solver, err := optim.NewAdamW(optim.WithMachine(m), optim.WithLR(1e-2))
	check(err)
	for range 200 {
		check(m.RunAndStep(solver, G.NodesToValueGrads(learnables))) // recorded once, then replayed; does not wait
	}
	final, err := graph.HostValue(loss.Value()) // waits; m.AsyncReader(loss) reads losses one step late instead
	check(err)
	check(errors.Join(weights.Download(), solver.Close(), m.Close(), weights.Close(), b.Close()))

	fmt.Println("loss below 0.8:", final.Data().(float32) < 0.8)
	// Output: loss below 0.8: true
}

// The reason why there is no GPU to use.
func ExampleOpen() {
	b, err := cuda.Open(0)
	if none := (*cuda.Unavailable)(nil); errors.As(err, &none) {
		fmt.Println("no GPU:", none.Reason)
		return
	}
	check(err)
	fmt.Println(cuda.Describe(b))
	check(b.Close())
}
