package graph_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
)

func TestCheckGraph(t *testing.T) {
	vector := func(g *G.ExprGraph, name string, n int) *G.Node {
		return G.NewVector(g, tensor.Float64, G.WithShape(n), G.WithName(name))
	}
	for name, c := range map[string]struct {
		build   func(g *G.ExprGraph)
		want    []string // in the error; none for a graph that is right
		refused bool     // by NewMachine too
	}{
		"right": {build: func(g *G.ExprGraph) {
			x := vector(g, "x", 2)
			var v G.Value
			G.Read(G.Must(G.Add(x, vector(g, "y", 2))), &v)
			G.NewVector(g, tensor.Float64, G.WithShape(2, 1), G.WithName("column"))
		}},
		"equal names": {build: func(g *G.ExprGraph) { vector(g, "x", 2); vector(g, "x", 3) },
			want: []string{`input "x" (node 0, shape (2)) and input "x" (node 1, shape (3)) have one name`}},
		"equal hashes": {build: func(g *G.ExprGraph) { vector(g, "xksxlu", 2); vector(g, "yycfoo", 2) },
			want: []string{`"xksxlu"`, `"yycfoo"`, "one hash"}},
		"no shape": {build: func(g *G.ExprGraph) { G.NewVector(g, tensor.Float64, G.WithName("x")) },
			want: []string{`input "x"`, "no shape"}, refused: true},
		"rank": {build: func(g *G.ExprGraph) {
			G.NewUniqueNode(G.WithShape(6), G.WithType(G.TensorType{Dims: 2, Of: tensor.Float64}), G.In(g), G.WithName("x"))
		}, want: []string{`input "x"`, "rank 2", "(6)"}, refused: true},
		"removed node": {build: func(g *G.ExprGraph) {
			x, y := vector(g, "x", 2), vector(g, "y", 2)
			G.Must(G.Add(y, y))
			g.RemoveNode(x)
		}},
	} {
		g := G.NewGraph()
		c.build(g)
		err := graph.CheckGraph(g)
		if c.want == nil {
			require.NoError(t, err, name)
		}
		for _, w := range c.want {
			require.ErrorContains(t, err, w, name)
		}
		m, err := graph.NewMachine(g)
		require.Equal(t, c.refused, err != nil, "%s: %v", name, err)
		if err == nil {
			require.NoError(t, m.Close())
		}
	}
	require.Error(t, graph.CheckGraph(nil))
}
