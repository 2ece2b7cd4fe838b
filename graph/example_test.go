package graph_test

import (
	"errors"
	"fmt"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

var check = testutil.Check

// Attention over the newest 16 tokens, stock ops after it, and gradients.
func ExampleNewMachine() {
	g := G.NewGraph()
	heads := func(name string, n int) *G.Node { // [B,S,H,D]
		return G.NewTensor(g, tensor.Float32, 4, G.WithShape(1, 64, n, 8), G.WithName(name), G.WithInit(G.Gaussian(0, 1)))
	}
	q, k, v := heads("q", 4), heads("k", 2), heads("v", 2)
	o := G.Must(ops.SlidingWindow(q, k, v, 16))
	loss := G.Must(G.Mean(G.Must(G.Square(o))))
	_, err := graph.Grad(loss, q, k, v)
	check(err)
	m, err := graph.NewMachine(g, graph.WithKeep(o))
	check(err)
	check(m.RunAll())
	dk, err := k.Grad()
	check(err)
	fmt.Println("output", o.Value().Shape(), "gradient of k", dk.Shape())
	check(m.Close())
	// Output: output (1, 64, 4, 8) gradient of k (1, 64, 2, 8)
}

// The derivative of x³ at 2.
func ExampleGrad() {
	g := G.NewGraph()
	x := G.NewScalar(g, tensor.Float64, G.WithName("x"), G.WithValue(2.0))
	grads, err := graph.Grad(G.Must(G.Cube(x)), x)
	check(err)
	m, err := graph.NewMachine(g)
	check(err)
	check(m.RunAll())
	fmt.Println(grads[0].Value())
	check(m.Close())
	// Output: 12
}

// Weights that stay on the device while they are trained, and a loss that is read one step late, so that the host never
// waits. Here the device is the CPU: with a backend of cuda.Open the code is the same.
func ExampleMoveInputs() {
	g := G.NewGraph()
	w := G.NewVector(g, tensor.Float32, G.WithShape(2), G.WithName("w"), G.WithInit(G.Zeroes()))
	// (w-3)²
	loss := G.Must(G.Sum(G.Must(G.Square(G.Must(G.Sub(w, G.NewConstant(tensor.New(tensor.WithBacking([]float32{3,
		3})))))))))
	_, err := graph.Grad(loss, w)
	check(err)
	b := graph.NewCPU(0)
	weights, err := graph.MoveInputs(b, w)
	check(err)
	solver, err := optim.NewAdamW(optim.WithLR(1), optim.WithDecay(0))
	check(err)
	m, err := graph.NewMachine(g, graph.WithBackend(b), graph.WithCapture(), graph.WithKeep(loss),
		graph.WithOptimizer(solver, w))
	check(err)
	reader, err := m.AsyncReader(loss)
	check(err)
	for range 4 {
		check(m.Step())
		check(reader.Fetch())
		if reader.Waiting() == 2 {
			number, err := reader.Next() // the loss of the step before
			check(err)
			fmt.Printf("%.1f ", number)
		}
	}
	check(errors.Join(weights.Download(), m.Close(), weights.Close(), b.Close()))
	// Output: 18.0 8.0 2.0
}

// Which op of a graph takes which implementation.
func ExampleMachine_Plan() {
	g := G.NewGraph()
	x := G.NewMatrix(g, tensor.Float32, G.WithShape(2, 3), G.WithName("x"))
	G.Must(G.Tanh(G.Must(ops.SiLU(x))))
	m, err := graph.NewMachine(g)
	check(err)
	for _, s := range m.Plan().Steps {
		fmt.Println(s.Op, s.Implementation)
	}
	check(m.Close())
	// Output:
	// silu cpu
	// tanh host
}
