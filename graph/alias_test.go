package graph_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// TestTransposedView: package tensor transposes a view into memory that is larger than its elements.
func TestTransposedView(t *testing.T) {
	g := G.NewGraph()
	x := G.NewMatrix(g, tensor.Float64, G.WithShape(2, 2), G.WithName("x"))
	y := G.Must(ops.Apply(scaledSum{1}, G.Must(G.Transpose(x, 1, 0))))
	view, err := tensor.New(tensor.WithShape(2, 4), tensor.WithBacking([]float64{0, 1, 2, 3, 4, 5, 6, 7})).Slice(nil, tensor.S(1, 3))
	require.NoError(t, err)
	require.NoError(t, G.Let(x, view))
	require.NoError(t, newMachine(t, g).RunAll())
	require.Equal(t, []float64{1, 5, 2, 6}, numbers(t, y.Value()))
}

// TestResultsTakeTurns feeds two results back as inputs, one of which would alias the copy of an earlier one.
func TestResultsTakeTurns(t *testing.T) {
	g := G.NewGraph()
	a := G.NewMatrix(g, tensor.Float64, G.WithShape(1, 2), G.WithName("a"))
	b := G.NewMatrix(g, tensor.Float64, G.WithShape(2, 1), G.WithName("b"))
	nextA := G.Must(G.Reshape(b, tensor.Shape{1, 2}))
	twice := G.Must(ops.Apply(scaledSum{2}, a))
	nextB := G.Must(ops.Apply(scaledSum{1}, G.Must(G.Reshape(twice, tensor.Shape{2, 1}))))
	for _, opts := range [][]graph.Option{nil, {graph.WithBackend(newFake())}} {
		m := newMachine(t, g, opts...)
		x, y := []float64{1, 2}, []float64{10, 20}
		require.NoError(t, G.Let(a, tensor.New(tensor.WithShape(1, 2), tensor.WithBacking([]float64{1, 2}))))
		require.NoError(t, G.Let(b, tensor.New(tensor.WithShape(2, 1), tensor.WithBacking([]float64{10, 20}))))
		for range 6 {
			require.NoError(t, m.RunAll())
			x, y = y, []float64{2 * x[0], 2 * x[1]}
			require.Equal(t, x, numbers(t, nextA.Value()))
			require.Equal(t, y, numbers(t, nextB.Value()))
			require.NoError(t, G.Let(a, nextA.Value()))
			require.NoError(t, G.Let(b, nextB.Value()))
		}
	}
}
