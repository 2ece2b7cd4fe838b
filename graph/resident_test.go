package graph_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
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
			require.EqualError(t, testutil.Err(graph.MoveInputs(b, x, c.node)), c.message)
			require.Same(t, value, x.Value())
		}
	}
}

func TestResidentRefuses(t *testing.T) {
	b := newFake()
	v := tensor.New(tensor.WithBacking([]float32{1, 2}))
	r := testutil.Must(graph.NewResident(b, []G.Value{v}))(t)
	for _, c := range []struct {
		b      graph.Backend
		values []G.Value
		want   string
	}{
		{nil, []G.Value{v}, "nil backend"},
		{b, []G.Value{v, nil}, "value 1 is nil"},
		{b, []G.Value{v, (*tensor.Dense)(nil)}, "value 1 is nil"},
		{graph.NewCPU(1), []G.Value{v, (*G.F32)(nil)}, "value 1 is nil"},
		{b, []G.Value{v, tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(0, 3))}, "value 1 has no elements: its shape is (0, 3)"},
		{b, []G.Value{v, v}, "values 0 and 1 share memory, and would be two on the device"},
		{b, r.Values(), "value 0, float32 (2) on the fake device, is on a device already"},
	} {
		require.EqualError(t, testutil.Err(graph.NewResident(c.b, c.values)), "graph: resident values: "+c.want)
	}
	require.NoError(t, r.Close())
	require.ErrorContains(t, r.Download(), "closed")
	require.ErrorContains(t, r.Upload(), "closed")
	require.NoError(t, r.Close())
	require.Zero(t, b.memory)
	require.Zero(t, b.streams)
}
