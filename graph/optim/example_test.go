package optim_test

import (
	"errors"
	"fmt"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

var check = testutil.Check

// Weights that run towards 3, at a learning rate that falls to a tenth.
func ExampleAdamW() {
	g := G.NewGraph()
	w := G.NewVector(g, tensor.Float64, G.WithShape(2), G.WithName("w"), G.WithInit(G.Zeroes()))
	target := G.NewConstant(tensor.New(tensor.WithBacking([]float64{3, 3})))
	loss := G.Must(G.Sum(G.Must(G.Square(G.Must(G.Sub(w, target))))))
	_, err := graph.Grad(loss, w)
	check(err)
	schedule := optim.WarmupCosine{LR: 0.1, Warmup: 5, Total: 100, Floor: 0.1}
	solver, err := optim.NewAdamW(optim.WithSchedule(schedule))
	check(err)
	m, err := graph.NewMachine(g, graph.WithOptimizer(solver, w))
	check(err)
	for range 100 {
		check(m.Step())
	}
	fmt.Printf("%d steps: %.1f\n", solver.Steps(), w.Value().Data())
	check(errors.Join(solver.Close(), m.Close()))
	// Output: 100 steps: [3.0 3.0]
}
