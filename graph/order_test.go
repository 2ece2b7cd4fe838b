package graph_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// scalars returns inputs of one element each, with these values, named a, b and so on.
func scalars(g *G.ExprGraph, values ...float64) (list G.Nodes) {
	for i, v := range values {
		list = append(list, G.NewScalar(g, tensor.Float64, G.WithName(string(rune('a'+i))), G.WithValue(v)))
	}
	return list
}

// TestStabilisedGraphs: Gorgonia's stabilisation removes nodes from the graph but does not update its index by id.
func TestStabilisedGraphs(t *testing.T) {
	for _, already := range []bool{false, true} {
		g := G.NewGraph()
		in := scalars(g, 0.1, 0.5)
		if already {
			G.Must(G.Log1p(G.Must(G.Neg(in[0]))))
		}
		cost := G.Must(G.BinaryXent(in[0], in[1]))
		require.NoError(t, graph.CheckGraph(g))
		testutil.Must(graph.Grad(cost, in[0]))(t)
		run(t, g)
		require.InDelta(t, -0.5/0.1+0.5/0.9, gradient(t, in[0])[0], 1e-12)
	}
}

// TestRemovedInput: the stabilisation of the second cost removes 1-y, which the first cost reads, and recycles the
// node.
func TestRemovedInput(t *testing.T) {
	for later := range 4 {
		g := G.NewGraph()
		in := scalars(g, 0.1, 0.5)
		cost := G.Must(G.BinaryXent(in[0], in[1]))
		G.Must(G.BinaryXent(in[1], in[0]))
		for i := range later {
			G.Must(G.Add(in[0], G.NewConstant(float64(10+i))))
		}
		require.ErrorContains(t, testutil.Err(graph.Grad(cost, in[0])), "stabilisation")
		require.ErrorContains(t, graph.CheckGraph(g), "stabilisation")
		require.ErrorContains(t, testutil.Err(graph.NewMachine(g)), "stabilisation")
	}
}

// TestSubgraphs: Gorgonia lists the nodes of a subgraph by their addresses.
func TestSubgraphs(t *testing.T) {
	n := newNetwork(t)
	run(t, n.graph)
	cost := numbers(t, n.cost.Value())
	n.grad(t)
	for range 200 {
		require.NoError(t, testutil.Closing(graph.NewMachine(n.graph.ExactSubgraphRoots(n.cost)))(t).RunAll())
		require.Equal(t, cost, numbers(t, n.cost.Value()))
		g := G.NewGraph()
		in := scalars(g, 2, 3)
		square := G.Must(G.Square(in[0]))
		product := G.Must(G.HadamardProd(square, in[1]))
		squares := G.Must(spec.Apply(scaledSum{2}, square, product))
		var read G.Value
		G.Read(product, &read)
		outside := G.Must(G.Neg(product)) // reads a root of the subgraphs
		for name, sub := range map[string]*G.ExprGraph{
			"roots":        g.SubgraphRoots(product, square),
			"exact roots":  g.ExactSubgraphRoots(product, square),
			"nodes":        g.Subgraph(in[0], in[1], square, product),
			"inputs lost":  g.Subgraph(square, product),
			"whole graph":  g,
			"another root": g.SubgraphRoots(squares, product),
		} {
			g.UnbindAllNonInputs()
			read = nil
			run(t, sub)
			if name == "whole graph" {
				require.Equal(t, []float64{-12}, numbers(t, outside.Value()))
			} else {
				require.Nil(t, outside.Value(), name)
				require.Equal(t, []float64{12}, numbers(t, product.Value()), name)
			}
			if strings.HasSuffix(name, "roots") {
				require.Equal(t, []float64{4}, numbers(t, square.Value()), name)
			}
			if name != "exact roots" {
				require.Equal(t, []float64{12}, numbers(t, read), name)
			}
		}
	}
}

func TestCheckGraph(t *testing.T) {
	vector := func(g *G.ExprGraph, name string, n int) *G.Node {
		return G.NewVector(g, tensor.Float64, G.WithShape(n), G.WithName(name))
	}
	for name, c := range map[string]struct {
		build   func(g *G.ExprGraph)
		want    string // a pattern of the error; none for a right graph
		refused bool   // NewMachine refuses it, too
	}{
		"right": {build: func(g *G.ExprGraph) {
			G.Read(G.Must(G.Add(vector(g, "x", 2), vector(g, "y", 2))), new(G.Value))
			G.NewVector(g, tensor.Float64, G.WithShape(2, 1), G.WithName("column"))
		}},
		"equal names": {build: func(g *G.ExprGraph) { vector(g, "x", 2); vector(g, "x", 3) },
			want: `input "x" \(node 0, shape \(2\)\) and input "x" \(node 1, shape \(3\)\) have the same name`},
		"equal hashes": {build: func(g *G.ExprGraph) { vector(g, "xksxlu", 2); vector(g, "yycfoo", 2) },
			want: `"xksxlu".*"yycfoo".*the same hash`},
		"no shape": {build: func(g *G.ExprGraph) { G.NewVector(g, tensor.Float64, G.WithName("x")) },
			want: `input "x".*no shape`, refused: true},
		"rank": {build: func(g *G.ExprGraph) {
			G.NewUniqueNode(G.WithShape(6), G.WithType(G.TensorType{Dims: 2, Of: tensor.Float64}), G.In(g), G.WithName("x"))
		}, want: `input "x".*\(6\).*rank 2`, refused: true},
		"removed node": {build: func(g *G.ExprGraph) {
			x, y := vector(g, "x", 2), vector(g, "y", 2)
			G.Must(G.Add(y, y))
			g.RemoveNode(x)
		}},
	} {
		g := G.NewGraph()
		c.build(g)
		if err := graph.CheckGraph(g); c.want == "" {
			require.NoError(t, err, name)
		} else {
			require.Regexp(t, c.want, err.Error(), name)
		}
		m, err := graph.NewMachine(g)
		require.Equal(t, c.refused, err != nil, "%s: %v", name, err)
		if err == nil {
			require.NoError(t, m.Close())
		}
	}
	require.Error(t, graph.CheckGraph(nil))
}
