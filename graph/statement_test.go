package graph

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// TestStatements pins how gorgonia's statements look to statementOf.
func TestStatements(t *testing.T) {
	g := G.NewGraph()
	x := G.NewScalar(g, tensor.Float64, G.WithName("x"))
	y := G.Must(G.Neg(x))
	var into G.Value
	for _, c := range []struct {
		node *G.Node
		ok   bool
		into *G.Value
	}{{x, false, nil}, {y, false, nil}, {G.Read(y, &into), true, &into}, {G.Set(x, y), true, nil}} {
		s, ok, err := statementOf(c.node)
		require.NoError(t, err)
		require.Equal(t, c.ok, ok)
		require.Same(t, c.into, s.into)
	}
	other := G.NewUniqueNode(G.WithOp(y.Op()), G.WithChildren(G.Nodes{x}), G.WithName("other"), G.In(g))
	_, _, err := statementOf(other)
	require.ErrorContains(t, err, "not known")
}
