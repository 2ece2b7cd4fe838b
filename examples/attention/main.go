// Attention adds Native Sparse Attention to a Gorgonia graph with stock ops, takes gradients, and runs the graph twice:
// on Gorgonia's TapeMachine, and on graph.Machine, which plans the graph, is faster and uses a GPU if there is one.
// Both give the same loss.
//
//	go run ./examples/attention
//	go run ./examples/attention -device cpu
package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/ops"
)

func main() {
	command.Main("", func(_ context.Context, args []string) error {
		out := bufio.NewWriter(os.Stdout)
		err := run(args, out)
		return cmp.Or(out.Flush(), err)
	})
}

// run runs the example with the given arguments and prints its results to w.
func run(args []string, w io.Writer) (err error) {
	set := command.NewFlags("examples/attention", "Attention adds Native Sparse Attention to a Gorgonia graph with stock ops, takes gradients, and runs the "+
		"graph on Gorgonia's TapeMachine and on graph.Machine, which plans it and uses a GPU if there is one.",
		`-device cpu # on the CPU, where a GPU is`)
	defer command.Explain(&err, set, nil)
	device := set.String("device", "auto", "auto, cpu or cuda:N; auto is the first GPU, or the CPU")
	precision := set.String("precision", "f32", "of the activations: f32, bf16 (on a GPU or a CPU with AVX512_BF16) or fp16 (on a GPU)")
	if err := command.Parse(set, args, w); err != nil {
		return err
	}
	p, err := graph.ParsePrecision(*precision)
	if err != nil {
		return err
	}
	backend, err := cuda.Select(*device)
	if err != nil {
		return command.UsageError(command.Flag("device", *device, err))
	}
	defer func() { err = errors.Join(err, backend.Close()) }()
	if err := p.Check(backend.Device()); err != nil {
		return err
	}
	const batch, seq, dim = 2, 256, 64
	config := nn.NSAConfig{
		Dim: dim, Heads: 4, KVHeads: 2, KeyDim: 16, ValueDim: 16, GateHidden: 16,
		Params: ops.Params{BlockLen: 16, Stride: 8, SelectBlock: 16, TopN: 6, Window: 48},
	}
	g := G.NewGraph()
	x := G.NewTensor(g, tensor.Float32, 3, G.WithShape(batch, seq, dim), G.WithName("x"), G.WithInit(G.Gaussian(0, 1)))
	target := G.NewTensor(g, tensor.Float32, 3, G.WithShape(batch, seq, dim), G.WithName("target"),
		G.WithInit(G.Gaussian(0, 1)))

	layer, err := nn.NewNSA(g, "attn.", config, nn.Random(tensor.Float32, 1))
	if err != nil {
		return err
	}
	y, err := layer.Apply(x) // [B,S,dim]
	if err != nil {
		return err
	}
	loss := G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(y, target)))))) // stock ops
	if _, err := graph.Grad(loss, layer.Learnables()...); err != nil {
		return err
	}

	solver, err := optim.NewAdamW(optim.WithLR(1e-2))
	if err != nil {
		return err
	}
	machine, err := graph.NewMachine(g, graph.WithBackend(backend), graph.WithPrecision(p), graph.WithKeep(loss),
		graph.WithOptimizer(solver, layer.Learnables()...))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, machine.Close()) }()

	tape := G.NewTapeMachine(g)
	defer tape.Close()
	if err := tape.RunAll(); err != nil {
		return err
	}
	fmt.Fprintln(w, "TapeMachine:", loss.Value())

	fmt.Fprintf(w, "Machine: on %s, %v\n", cuda.Describe(backend), p)
	weights, err := graph.MoveInputs(backend, layer.Learnables()...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, weights.Close()) }()
	for step := range 5 {
		if err := machine.Step(); err != nil {
			return err
		}
		v, err := graph.HostValue(loss.Value())
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "Machine, step %d: %v\n", step, v)
	}
	fmt.Fprintln(w, machine.Plan())
	return nil
}
