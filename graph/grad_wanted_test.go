package graph_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// TestGradMakesNoUnwantedGradients: the gradient of a linear layer by data that nobody differentiates by is not computed.
func TestGradMakesNoUnwantedGradients(t *testing.T) {
	g := G.NewGraph()
	x := G.NewMatrix(g, tensor.Float64, G.WithShape(3, 4), G.WithName("x"), G.WithInit(G.Gaussian(0, 1)))
	w := G.NewMatrix(g, tensor.Float64, G.WithShape(5, 4), G.WithName("w"), G.WithInit(G.Gaussian(0, 1)))
	y, err := ops.Linear(x, w)
	require.NoError(t, err)
	_, err = graph.Grad(G.Must(G.Sum(y)), w)
	require.NoError(t, err)
	for _, n := range g.AllNodes() {
		spec, _ := ops.SpecOf(n.Op())
		_, unwanted := spec.(ops.LinearInputGradOp)
		require.False(t, unwanted)
	}
}
