package graph_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// TestFetch copies parts of a result, of which nothing is copied otherwise, from the host's memory and from a device's.
func TestFetch(t *testing.T) {
	f := fakedevice.New()
	for _, b := range []graph.Backend{graph.NewCPU(1), f} {
		x := vector(G.NewGraph(), "x", 1, 2, 3, 4)
		y := G.Must(spec.Apply(scaledSum{2}, x))
		z := G.Must(spec.Apply(scaledSum{1}, y))
		onHost := G.Must(G.Neg(z))
		m := newMachine(t, x.Graph(), graph.WithBackend(b), graph.WithKeep(y, z, onHost))
		one, two := dense(0), dense(0, 0)
		require.ErrorContains(t, m.Fetch(one, y, 0), "has not run")
		require.NoError(t, m.RunAll())
		f.Downloads = 0
		require.NoError(t, m.Fetch(one, y, 3))
		require.NoError(t, m.Fetch(two, y, 1))
		require.NoError(t, m.Synchronize())
		require.Equal(t, []float64{8}, numbers(t, one))
		require.Equal(t, []float64{4, 6}, numbers(t, two))
		if b == graph.Backend(f) {
			require.Equal(t, 2, f.Downloads)
		}
		floats := tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(1))
		for _, c := range []struct {
			dst   *tensor.Dense
			node  *G.Node
			first int
			err   string
		}{
			{one, y, 4, "1 elements from 4 on, it has 4"}, {two, y, 3, "2 elements from 3 on"}, {one, y, -1, "from -1 on"},
			{nil, y, 0, "is nil"}, {floats, y, 0, "to float32, want float64"}, {one, x, 0, "no kernel computes it"},
			{one, onHost, 0, "no kernel computes it"}, {one, nil, 0, "no kernel computes it"},
		} {
			require.ErrorContains(t, m.Fetch(c.dst, c.node, c.first), c.err)
		}
		require.NoError(t, m.Close())
		require.Error(t, m.Fetch(one, y, 0))
	}
}
