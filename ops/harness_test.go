package ops_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// array is an input of a test graph: floats, or indices where ints is set.
type array struct {
	name   string
	shape  []int
	floats []float64
	ints   []int32
}

// node adds a to g as an input of type dt (int32 for indices).
func (a array) node(g *G.ExprGraph, dt tensor.Dtype) *G.Node {
	var backing any
	switch {
	case a.ints != nil:
		dt, backing = tensor.Int32, append([]int32(nil), a.ints...)
	case dt == tensor.Float32:
		f := make([]float32, len(a.floats))
		for i, v := range a.floats {
			f[i] = float32(v)
		}
		backing = f
	default:
		backing = append([]float64(nil), a.floats...)
	}
	v := tensor.New(tensor.Of(dt), tensor.WithShape(a.shape...), tensor.WithBacking(backing))
	return G.NewTensor(g, dt, len(a.shape), G.WithShape(a.shape...), G.WithName(a.name), G.WithValue(v))
}

// build makes a node of the inputs; the tests' view of an op.
type build func(in []*G.Node) (*G.Node, error)

// vms are the machines that every op runs on.
var vms = map[string]func(*G.ExprGraph) (G.VM, error){
	"TapeMachine": func(g *G.ExprGraph) (G.VM, error) { return G.NewTapeMachine(g), nil },
	"Machine":     func(g *G.ExprGraph) (G.VM, error) { return graph.NewMachine(g) },
}

// result is what a test graph computed: the output and, where weights were given, the gradients of sum(out*weights).
type result struct {
	out   []float64
	grads map[string][]float64
}

// evaluate builds the graph in type dt, runs it twice on the named machine and returns the second run's values. With
// weights (as many as the output has elements) it takes the gradients of sum(out*weights) by the inputs of floats.
func evaluate(t testing.TB, vm string, dt tensor.Dtype, b build, weights []float64, inputs ...array) result {
	t.Helper()
	g := G.NewGraph()
	var nodes, wrt G.Nodes
	for _, a := range inputs {
		n := a.node(g, dt)
		nodes = append(nodes, n)
		if a.ints == nil {
			wrt = append(wrt, n)
		}
	}
	out, err := b(nodes)
	require.NoError(t, err)
	var kept G.Value
	G.Read(out, &kept)
	if weights != nil {
		cost := out
		if !out.IsScalar() {
			r := array{name: "weights of the test", shape: out.Shape(), floats: weights}.node(g, dt)
			cost = G.Must(G.Sum(G.Must(G.HadamardProd(out, r))))
		}
		_, err := G.Grad(cost, wrt...)
		require.NoError(t, err)
	}
	m, err := vms[vm](g)
	require.NoError(t, err)
	defer m.Close()
	require.NoError(t, m.RunAll())
	m.Reset()
	require.NoError(t, m.RunAll())
	res := result{out: testutil.Floats(t, kept.Data()), grads: map[string][]float64{}}
	if weights != nil {
		for _, n := range wrt {
			v, err := n.Grad()
			require.NoError(t, err)
			res.grads[n.Name()] = testutil.Floats(t, v.Data())
		}
	}
	return res
}
