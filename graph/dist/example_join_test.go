package dist_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/dist"
	"github.com/gorgonia-nsa/nsa/graph/optim"
)

// A program whose processes are the ranks of a job, one for each device. torchrun, Slurm, Kubernetes or dist.Launch
// starts them; without these it trains alone.
func ExampleJoin() {
	o, launched, err := dist.FromEnv()
	check(err)
	if !launched {
		o.Size = 1
	}
	group, err := dist.Join(context.Background(), o)
	check(err)

	const batch, columns = 24, 3
	rows := batch / group.Size()
	g := G.NewGraph()
	x := G.NewMatrix(g, tensor.Float32, G.WithShape(rows, columns), G.WithName("x"))
	y := G.NewMatrix(g, tensor.Float32, G.WithShape(rows, 1), G.WithName("y"))
	// the ranks begin with equal weights, and the loss is the mean over a rank's rows
	w := G.NewMatrix(g, tensor.Float32, G.WithShape(columns, 1), G.WithName("w"), G.WithInit(G.Zeroes()))
	loss := G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(G.Must(G.Mul(x, w)), y))))))
	_, err = G.Grad(loss, w)
	check(err)

	b := graph.NewCPU(0) // on GPUs: cuda.Open(o.LocalRank)
	solver, err := optim.NewAdamW(optim.WithLR(0.1), optim.WithDecay(0))
	check(err)
	m, err := graph.NewMachine(g, graph.WithBackend(b), graph.WithGroup(group), graph.WithOptimizer(solver, w))
	check(err)
	for step := range 200 {
		r := rand.New(rand.NewPCG(1, uint64(step))) // all ranks draw the same batch
		xs, ys := make([]float32, batch*columns), make([]float32, batch)
		for i := range xs {
			xs[i] = float32(r.NormFloat64())
			ys[i/columns] += float32(1+i%columns) * xs[i]
		}
		first := group.Rank() * rows // and each takes its rows
		check(G.Let(x, tensor.New(tensor.WithShape(rows, columns), tensor.WithBacking(xs[first*columns:][:rows*columns]))))
		check(G.Let(y, tensor.New(tensor.WithShape(rows, 1), tensor.WithBacking(ys[first:][:rows]))))
		check(m.Step())
	}
	if group.Rank() == 0 {
		fmt.Printf("learned weights: %.1f\n", w.Value().Data())
	}
	check(errors.Join(m.Close(), solver.Close(), b.Close(), group.Close()))
	// Output: learned weights: [1.0 2.0 3.0]
}

// check ends the program; the other ranks end with the error that this one has ended.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
