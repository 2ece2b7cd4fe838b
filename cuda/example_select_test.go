package cuda_test

import (
	"errors"
	"fmt"
	"log"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/ops"
)

// A layer of sparse attention trains on the first GPU, or on the CPU where there is none. The README shows this file as a program.
func ExampleSelect() {
	config := nn.NSAConfig{
		Dim: 32, Heads: 4, KVHeads: 2, KeyDim: 8, ValueDim: 8, GateHidden: 16,
		Params: ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 4, Window: 16},
	}
	g := G.NewGraph()
	x := G.NewTensor(g, tensor.Float32, 3, G.WithShape(2, 64, config.Dim), G.WithName("x"), G.WithInit(G.Gaussian(0, 1)))
	layer, err := nn.NewNSA(g, "attn.", config, nn.Random(tensor.Float32, 1))
	check(err)
	y, err := layer.Apply(x) // [B,S,Dim]
	check(err)
	loss := G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(y, x)))))) // the layer learns to copy
	weights := layer.Learnables()
	_, err = graph.Grad(loss, weights...)
	check(err)

	b, err := cuda.Select("auto") // the first GPU, or the CPU; cuda.Open(0) insists on the GPU
	check(err)
	onDevice, err := graph.MoveInputs(b, weights...) // they stay there until Close
	check(err)
	solver, err := optim.NewAdamW(optim.WithLR(1e-2))
	check(err)
	m, err := graph.NewMachine(g, graph.WithBackend(b), graph.WithCapture(), graph.WithKeep(loss),
		graph.WithOptimizer(solver, weights...))
	check(err)
	for range 300 {
		check(m.Step()) // recorded once, then replayed; does not wait
	}
	final, err := graph.HostValue(loss.Value()) // waits
	check(err)
	fmt.Println("loss below 0.5:", final.Data().(float32) < 0.5)
	check(errors.Join(onDevice.Download(), m.Close(), onDevice.Close(), b.Close()))
	// Output: loss below 0.5: true
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
