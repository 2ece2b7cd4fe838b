package graph_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// TestIntTokensOnDevice: tokens of type int are converted on the host, and the converted ones are checked there and uploaded.
func TestIntTokensOnDevice(t *testing.T) {
	g := G.NewGraph()
	tokens := tensor.New(tensor.WithShape(1, 3), tensor.WithBacking([]int{2, 0, 2}))
	ids := G.NewTensor(g, tensor.Int, 2, G.WithShape(1, 3), G.WithName("ids"), G.WithValue(tokens))
	w := G.NewTensor(g, tensor.Float32, 2, G.WithShape(3, 2), G.WithName("w"), G.WithInit(G.RangedFrom(0)))
	x, err := ops.Embedding(w, ids)
	require.NoError(t, err)
	var y G.Value
	G.Read(x, &y)
	_, err = G.Grad(G.Must(G.Sum(x)), w)
	require.NoError(t, err)
	device := newFake()
	device.missing = "int32" // as on a GPU
	m, err := graph.NewMachine(g, graph.WithBackend(device))
	require.NoError(t, err)
	defer m.Close()
	require.NoError(t, m.RunAll())
	require.Equal(t, []float64{4, 5, 0, 1, 4, 5}, testutil.Floats(t, y.Data()))
	dw, err := w.Grad()
	require.NoError(t, err)
	require.Equal(t, []float64{1, 1, 0, 0, 2, 2}, testutil.Floats(t, dw.Data()))
	tokens.Ints()[1] = 3
	m.Reset()
	require.ErrorContains(t, m.RunAll(), "id 3 at (0, 1) is outside the vocabulary [0, 3)")
}
