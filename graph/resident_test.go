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

func TestResidentRefuses(t *testing.T) {
	b := newFake()
	v := tensor.New(tensor.WithBacking([]float32{1, 2}))
	_, err := graph.NewResident(nil, []G.Value{v})
	require.ErrorContains(t, err, "nil backend")
	for _, b := range []graph.Backend{graph.NewCPU(1), b} {
		for _, none := range []G.Value{nil, (*tensor.Dense)(nil), (*G.F32)(nil)} {
			_, err = graph.NewResident(b, []G.Value{v, none})
			require.EqualError(t, err, "graph: resident values: value 1 is nil")
		}
	}
	_, err = graph.NewResident(b, []G.Value{v, tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(0, 3))})
	require.ErrorContains(t, err, "value 1 has no elements: its shape is (0, 3)")
	_, err = graph.NewResident(b, []G.Value{v, v})
	require.ErrorContains(t, err, "values 0 and 1 share memory")
	r, err := graph.NewResident(b, []G.Value{v})
	require.NoError(t, err)
	_, err = graph.NewResident(b, r.Values())
	require.ErrorContains(t, err, "is on a device already")
	require.NoError(t, r.Close())
	require.ErrorContains(t, r.Download(), "closed")
	require.ErrorContains(t, r.Upload(), "closed")
	require.NoError(t, r.Close())
	require.Zero(t, b.memory)
	require.Zero(t, b.streams)
}
