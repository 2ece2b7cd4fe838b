package graph_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestGradAfterGrad: a graph that holds a gradient can be differentiated again, by an input of its own and by the same ones.
// Many gradients of Gorgonia's ops cannot tell which inputs have a gradient.
func TestGradAfterGrad(t *testing.T) {
	for _, c := range gorgonias() {
		b := c.graph(t)
		if c.wrong == noGradient {
			continue
		}
		if _, err := graph.Grad(b.cost, b.in...); err != nil {
			require.NotEmpty(t, c.wrong, "%s: %v", c.name, err)
			continue
		}
		other := G.NewVector(b.graph, G.Float64, G.WithShape(2), G.WithName("other"))
		testutil.Must(graph.Grad(G.Must(G.Sum(G.Must(G.Square(other)))), other))(t)
		_, err := graph.Grad(b.cost, b.in...)
		require.NoError(t, err, c.name)
	}
}
