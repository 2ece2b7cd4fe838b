package graph_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// TestReadOfSparse: the target of a Read of a sparse input gets a copy of it.
func TestReadOfSparse(t *testing.T) {
	g := G.NewGraph()
	x := G.NewMatrix(g, tensor.Float64, G.WithShape(2, 2), G.WithName("x"))
	var got G.Value
	G.Read(x, &got)
	v := tensor.CSCFromCoord(tensor.Shape{2, 2}, []int{0, 1}, []int{0, 1}, []float64{1, 2})
	require.NoError(t, G.Let(x, v))
	require.NoError(t, newMachine(t, g).RunAll())
	require.NotSame(t, v, got)
	require.Equal(t, []float64{1, 0, 0, 2}, got.(*tensor.CS).Dense().Data())
}

// TestReadWithoutTarget: the error names the node.
func TestReadWithoutTarget(t *testing.T) {
	for name, opts := range backends() {
		g := G.NewGraph()
		x := vector(g, "x", 1, 2)
		G.Read(G.Must(G.Tanh(x)), nil)
		require.ErrorContains(t, newMachine(t, g, opts...).RunAll(), "op tanh (node 1, shape (2)): the target is nil", name)
	}
}
