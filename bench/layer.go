package main

import (
	"fmt"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// nsaLayer plans one NSA layer of Base()'s shape over s tokens, with the gradients of its parameters and of its input.
func nsaLayer(s int) *graph.Machine {
	g := G.NewGraph()
	l := must(nn.NewNSA(g, "layer.", base.NSAConfig, nn.Random(tensor.Float32, 1)))
	x := input(g, "x", 1, s, base.Dim)
	y := must(l.Apply(x))
	cost := must(spec.Apply(givenGradient{}, y, input(g, "gradient of y", 1, s, base.Dim)))
	must(graph.Grad(cost, append(l.Learnables(), x)...))
	return must(graph.NewMachine(g))
}

// givenGradient is a cost whose gradient with respect to y is its second input: y, dy -> 0. It takes no time, so that
// only the layer is measured.
type givenGradient struct{}

func (givenGradient) Name() string { return "given gradient" }

func (givenGradient) Infer(in []spec.Operand) ([]spec.Operand, error) {
	return []spec.Operand{{Dtype: in[0].Dtype}}, nil
}

func (givenGradient) Bind(k *cpu.Kernel, _, out []spec.Arg) {
	k.Phase(1, func(int, *cpu.Worker) { clear(cpu.Slice[float32](out[0].Buf)) })
}

func (givenGradient) Grad(_ []bool, in G.Nodes, _, _ *G.Node) (G.Nodes, error) {
	return G.Nodes{in[1], nil}, nil
}

// benchLayer measures the layer's time and memory, forward and backward, against the sequence length. The lengths run
// in turn, so that a slow phase of the machine affects all of them.
func benchLayer(r *report) {
	var lengths []int
	for _, s := range []int{1024, 2048, 4096, 8192} {
		r.part(s, func() { lengths = append(lengths, s) })
	}
	var runs []func() error
	memory := map[int]float64{} // planned bytes
	for _, s := range lengths {
		m := nsaLayer(s)
		defer mustClose(m)
		p := m.Plan()
		runs, memory[s] = append(runs, m.RunAll), float64(p.Arena+p.Workspace)
	}
	times := map[int]float64{}
	for i, t := range secondsInTurn(9, runs...) {
		s := lengths[i]
		times[s] = t
		size := fmt.Sprintf("S=%d", s)
		r.add("NSA layer, forward and backward", size, t, "s")
		r.add("NSA layer, planned memory", size, memory[s]/(1<<20), "MiB")
		r.add("NSA layer, planned memory a token", size, memory[s]/float64(s), "bytes")
	}
	if len(lengths) > 1 {
		r.add("NSA layer, time of 8192 over 2048", "f+b", times[8192]/times[2048], "times", atMost(5))
		r.add("NSA layer, memory a token of 8192 over 1024", "f+b", memory[8192]/8192/(memory[1024]/1024), "times",
			atMost(1.05))
	}
}
