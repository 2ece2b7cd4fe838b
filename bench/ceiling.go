package main

import (
	"errors"
	"fmt"
	"time"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// ceilings returns the flop and the bytes a second that the device reaches in a large matrix product of the report's
// precision and in a sum of large vectors.
func ceilings(r *report) (flops, bytes float64, err error) {
	const n = 8192
	product, err := fastest(r, "linear", func(g *G.ExprGraph) (*G.Node, error) {
		return ops.Linear(numbers(g, "x", 1, n, n), numbers(g, "w", n, n))
	})
	if err != nil {
		return 0, 0, err
	}
	sum, err := fastest(r, "add", func(g *G.ExprGraph) (*G.Node, error) {
		return ops.Add(numbers(g, "x", 1, n, 2*n), numbers(g, "y", 1, n, 2*n))
	})
	if err != nil {
		return 0, 0, err
	}
	return product.FLOPs / product.time.Seconds(), sum.Bytes / sum.time.Seconds(), nil
}

// numbers returns an input of varied numbers.
func numbers(g *G.ExprGraph, name string, shape ...int) *G.Node {
	v := tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(shape...))
	for i := range v.Float32s() { // of zeros a product would draw less power, and so run at a higher clock
		v.Float32s()[i] = float32(i*7919%1024)/512 - 1
	}
	return G.NewTensor(g, tensor.Float32, len(shape), G.WithShape(shape...), G.WithName(name), G.WithValue(v))
}

// fastest runs the graph that build makes and returns its one op of the given name with the shortest of its times.
func fastest(r *report, name string, build func(*G.ExprGraph) (*G.Node, error)) (p profiled, err error) {
	g := G.NewGraph()
	if _, err := build(g); err != nil {
		return p, err
	}
	inputs, err := graph.MoveInputs(r.backend, g.Inputs()...)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, inputs.Close()) }()
	m, err := graph.NewMachine(g, graph.WithBackend(r.backend), graph.WithPrecision(r.precision))
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	times, err := profileSteps(m, 8)
	if err != nil {
		return p, err
	}
	for i, s := range m.Plan().Steps {
		if s.Op == name {
			return profiled{name: name, calls: 1, time: times[i], Cost: s.Cost}, nil
		}
	}
	return p, fmt.Errorf("no op %s in the plan", name)
}

// profileSteps returns the shortest of some times of each step of a machine's plan.
func profileSteps(m *graph.Machine, runs int) (best []time.Duration, err error) {
	for run := range runs {
		times, err := m.Profile()
		if err != nil {
			return nil, err
		}
		if run == 0 {
			best = times
		}
		for i, t := range times {
			best[i] = min(best[i], t)
		}
	}
	return best, nil
}
