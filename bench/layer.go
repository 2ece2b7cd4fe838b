package main

import (
	"fmt"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
)

// nsaLayer builds one NSA layer of Base()'s shape with the gradients of its parameters and of its input, planned for
// sequences of s tokens.
func nsaLayer(s int) (*graph.Machine, error) {
	g := G.NewGraph()
	l, err := graph.NewNSA(g, "layer.", graph.NSAConfig{
		Dim: baseDim, Heads: baseHeads, KVHeads: baseGroups, KeyDim: baseD, ValueDim: baseD,
		Params: baseParams, GateHidden: 64,
	}, graph.Fresh(tensor.Float32, 1))
	if err != nil {
		return nil, err
	}
	x := input(g, "x", 1, s, baseDim)
	y, err := l.Apply(x)
	if err != nil {
		return nil, err
	}
	if err := sumGradients(y, input(g, "r", 1, s, baseDim), append(l.Learnables(), x)); err != nil {
		return nil, err
	}
	return graph.NewMachine(g)
}

// sumGradients adds the gradients of sum(y*r) to the graph, for r an input of y's shape.
func sumGradients(y, r *G.Node, wrt G.Nodes) error {
	product, err := G.HadamardProd(y, r)
	if err != nil {
		return err
	}
	cost, err := G.Sum(product)
	if err != nil {
		return err
	}
	_, err = graph.Grad(cost, wrt...)
	return err
}

// benchLayer measures the layer's time and memory, forward and backward, against the sequence length.
func benchLayer(r *report) error {
	times, bytes := map[int]float64{}, map[int]float64{}
	for _, s := range []int{1024, 2048, 4096, 8192} {
		m, err := nsaLayer(s)
		if err != nil {
			return err
		}
		t, err := seconds(3, m.RunAll)
		if err != nil {
			return err
		}
		p := m.Plan()
		times[s], bytes[s] = t, float64(p.Arena+p.Workspace)
		if err := m.Close(); err != nil {
			return err
		}
		size := fmt.Sprintf("S=%d", s)
		r.add("NSA layer, forward and backward", size, t, "s", nil, "", 0)
		r.add("NSA layer, planned memory", size, bytes[s]/(1<<20), "MiB", nil, "", 0)
		r.add("NSA layer, planned memory a token", size, bytes[s]/float64(s), "bytes", nil, "", 0)
	}
	r.add("NSA layer, time of 8192 over 2048", "f+b", times[8192]/times[2048], "times", atMost(5), "", 0)
	r.add("NSA layer, memory a token of 8192 over 1024", "f+b", bytes[8192]/8192/(bytes[1024]/1024), "times", atMost(1.05), "", 0)
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
	a, err := newStockAttention(g, s, baseDim, baseHeads, baseGroups, baseD)
	if err != nil {
		return err
	}
	if err := stockGradients(a, matrix(g, "r", s, baseDim, normal(s*baseDim))); err != nil {
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
	r.add("NSA layer, forward and backward", size, t, "s", nil, "dense attention of stock ops, same run", stock)
	r.add("NSA layer, speed over stock dense attention", size, stock/t, "times", atLeast(10), "", 0)
	return nil
}

// stockGradients is sumGradients by Gorgonia's own Grad.
func stockGradients(a *stockAttention, r *G.Node) error {
	product, err := G.HadamardProd(a.out, r)
	if err != nil {
		return err
	}
	cost, err := G.Sum(product)
	if err != nil {
		return err
	}
	_, err = G.Grad(cost, append(a.learnables(), a.x)...)
	return err
}
