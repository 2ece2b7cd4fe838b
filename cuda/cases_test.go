package cuda_test

import (
	"strings"
	"testing"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// opCase is a case of an op that a machine runs.
type opCase struct{ opcases.Case }

// opCases returns every op that has kernels, at small sizes; attention at one around each of its boundaries.
func opCases() (list []opCase) {
	cases := opcases.Layers()
	for _, s := range opcases.AttentionSizes() {
		if s.S == 1 || s.S == 23 || s.S == 37 || s.S == 133 || s.S == 259 {
			cases = append(cases, s.Cases()...)
		}
	}
	for _, c := range cases {
		elements := 0
		for _, a := range c.Inputs {
			elements += tensor.Shape(a.Shape).TotalSize()
		}
		// A linear layer with SiLU runs as two ops, and norms of more than 16384 run on the host.
		if strings.HasPrefix(c.Name, "silu of linear") || strings.Contains(c.Name, "rms norm") && strings.Contains(c.Name, "[2 17000]") {
			continue
		}
		if elements < 150_000 {
			list = append(list, opCase{c})
		}
	}
	return list
}

// graph builds the op and its gradients by a normal dy. The results are all outputs of the op, and the gradients there are.
func (c opCase) graph(t testing.TB, dt tensor.Dtype) (*G.ExprGraph, G.Nodes) {
	t.Helper()
	g := G.NewGraph()
	var in G.Nodes
	for _, a := range c.Inputs {
		in = append(in, a.Node(g, dt))
	}
	y := testutil.Must(c.Build(in))(t)
	results := G.Nodes{y}
	if c.Gradients == nil {
		for i := 1; i < len(ops.OutputsOf(y.Op())); i++ {
			results = append(results, G.Must(ops.Output(y, i)))
		}
		return g, results
	}
	dy := opcases.Normal("dy", 99, y.Shape()...).Node(g, dt)
	for _, d := range testutil.Must(y.Op().(G.SDOp).SymDiff(in, y, dy))(t) {
		if d != nil {
			results = append(results, d)
		}
	}
	return g, results
}
