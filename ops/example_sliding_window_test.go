package ops_test

import (
	"fmt"
	"log"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Window attention in a graph of stock ops, with gradients, on either machine. The README shows this file as a program.
func ExampleSlidingWindow() {
	g := G.NewGraph()
	input := func(name string, heads int) *G.Node { // [B,S,heads,D]
		return G.NewTensor(g, tensor.Float32, 4, G.WithShape(1, 128, heads, 16), G.WithName(name),
			G.WithInit(G.Gaussian(0, 1)))
	}
	q, k, v := input("q", 4), input("k", 2), input("v", 2) // two query heads share a key/value head

	o := G.Must(ops.SlidingWindow(q, k, v, 32)) // [B,S,Hq,Dv]
	loss := G.Must(G.Mean(G.Must(G.Square(o)))) // stock ops
	grads, err := G.Grad(loss, q, k, v)         // Gorgonia's own, or graph.Grad
	check(err)

	tape := G.NewTapeMachine(g) // Gorgonia's own
	check(tape.RunAll())
	onTape := loss.Value().Data()
	check(tape.Close())

	m, err := graph.NewMachine(g) // the same results, faster, in less memory
	check(err)
	check(m.RunAll())
	fmt.Println("same loss:", loss.Value().Data() == onTape, "dq:", grads[0].Value().Shape())
	check(m.Close())
	// Output: same loss: true dq: (1, 128, 4, 16)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
