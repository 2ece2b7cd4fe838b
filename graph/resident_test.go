package graph_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
)

// TestMoveInputsRefuses what is no input with a value, on any backend, and leaves the nodes as they are.
func TestMoveInputsRefuses(t *testing.T) {
	for _, b := range []graph.Backend{graph.NewCPU(1), newFake()} {
		x := G.NewVector(G.NewGraph(), tensor.Float32, G.WithShape(3), G.WithName("x"), G.WithInit(G.Ones()))
		empty := G.NewVector(G.NewGraph(), tensor.Float32, G.WithShape(3), G.WithName("empty"))
		y := G.Must(G.Neg(x))
		require.NoError(t, G.NewTapeMachine(x.Graph()).RunAll())
		require.NotNil(t, y.Value())
		value := x.Value()
		for _, c := range []struct {
			node    *G.Node
			message string
		}{
			{y, "graph: move inputs: op neg (node 1, shape (3)) is not an input"},
			{G.Must(G.Neg(empty)), "graph: move inputs: op neg (node 1, shape (3)) is not an input"},
			{empty, `graph: move inputs: input "empty" (node 0, shape (3)) has no value`},
			{nil, "graph: move inputs: nil node has no value"},
		} {
			_, err := graph.MoveInputs(b, x, c.node)
			require.EqualError(t, err, c.message)
			require.Same(t, value, x.Value())
		}
	}
}
