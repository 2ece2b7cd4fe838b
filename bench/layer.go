package main

import (
	"fmt"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// nsaLayer builds one NSA layer of Base()'s shape with the gradients of its parameters and of its input, planned for
// sequences of s tokens.
func nsaLayer(s int) (*graph.Machine, error) {
	g := G.NewGraph()
	l, err := nn.NewNSA(g, "layer.", nn.NSAConfig{
		Dim: baseDim, Heads: baseHeads, KVHeads: baseGroups, KeyDim: baseD, ValueDim: baseD,
		Params: baseParams, GateHidden: 64,
	}, nn.Random(tensor.Float32, 1))
	if err != nil {
		return nil, err
	}
	x := input(g, "x", 1, s, baseDim)
	y, err := l.Apply(x)
	if err != nil {
		return nil, err
	}
	cost, err := ops.Apply(given{}, y, input(g, "gradient of y", 1, s, baseDim))
	if err != nil {
		return nil, err
	}
	if _, err := graph.Grad(cost, append(l.Learnables(), x)...); err != nil {
		return nil, err
	}
	return graph.NewMachine(g)
}

// given is a cost whose gradient is given, so that the layer's backward is measured and not that of a cost: y, dy -> 0,
// where dy is what the gradient by y shall be.
type given struct{}

func (given) Name() string { return "given gradient" }

func (given) Infer(in []ops.Operand) ([]ops.Operand, error) {
	return []ops.Operand{{Dtype: in[0].Dtype}}, nil
}

func (given) Bind(k *cpu.Kernel, _, out []ops.Arg) error {
	k.Phase(1, func(int, *cpu.Worker) { clear(cpu.Slice[float32](out[0].Buf)) })
	return nil
}

func (given) Grad(_ []bool, in G.Nodes, _, _ *G.Node) (G.Nodes, error) {
	return G.Nodes{in[1], nil}, nil
}

// benchLayer measures the layer's time and memory, forward and backward, against the sequence length. The lengths take
// turns, so that a slow spell of the computer hits all of them.
func benchLayer(r *report) error {
	lengths := []int{1024, 2048, 4096, 8192}
	var runs []func() error
	bytes, times := map[int]float64{}, map[int]float64{}
	for _, s := range lengths {
		m, err := nsaLayer(s)
		if err != nil {
			return err
		}
		defer m.Close()
		p := m.Plan()
		bytes[s] = float64(p.Arena + p.Workspace)
		runs = append(runs, m.RunAll)
	}
	medians, err := secondsInTurn(9, runs...)
	if err != nil {
		return err
	}
	for i, s := range lengths {
		times[s] = medians[i]
		size := fmt.Sprintf("S=%d", s)
		r.add("NSA layer, forward and backward", size, times[s], "s")
		r.add("NSA layer, planned memory", size, bytes[s]/(1<<20), "MiB")
		r.add("NSA layer, planned memory a token", size, bytes[s]/float64(s), "bytes")
	}
	r.add("NSA layer, time of 8192 over 2048", "f+b", times[8192]/times[2048], "times", atMost(5))
	r.add("NSA layer, memory a token of 8192 over 1024", "f+b", bytes[8192]/8192/(bytes[1024]/1024), "times", atMost(1.05))
	return nil
}

// benchStock compares the layer with dense attention of stock Gorgonia ops on a TapeMachine, forward and backward.
func benchStock(r *report) error {
	const s = 2048
	m, err := nsaLayer(s)
	if err != nil {
		return err
	}
	defer m.Close()
	t, err := seconds(3, m.RunAll)
	if err != nil {
		return err
	}
	g := G.NewGraph()
	inputs, out := stockAttention(g, s, baseDim, baseHeads, baseGroups, baseD)
	cost := G.Must(G.Sum(G.Must(G.HadamardProd(out, matrix(g, "r", s, baseDim, normal(s*baseDim))))))
	if _, err := G.Grad(cost, inputs...); err != nil {
		return err
	}
	vm := G.NewTapeMachine(g)
	defer vm.Close()
	stock, err := seconds(1, func() error {
		defer vm.Reset()
		return vm.RunAll()
	})
	if err != nil {
		return err
	}
	size := fmt.Sprintf("S=%d", s)
	r.add("NSA layer, forward and backward", size, t, "s", against("dense attention of stock ops, same run", stock))
	r.add("NSA layer, speed over stock dense attention", size, stock/t, "times", atLeast(10))
	return nil
}
