package graph_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
)

func TestPolicyFromEnv(t *testing.T) {
	for value, want := range map[string]bool{"": false, "1": true, "true": true, "0": false} {
		t.Setenv("NSA_STRICT", value)
		p, err := graph.PolicyFromEnv()
		require.NoError(t, err)
		require.Equal(t, graph.Policy{Strict: want}, p)
	}
	t.Setenv("NSA_STRICT", "rather")
	_, err := graph.PolicyFromEnv()
	require.ErrorContains(t, err, `NSA_STRICT is "rather"`)

	t.Setenv("NSA_STRICT", "")
	t.Setenv("NSA_UNFUSED", "linears,linear-add")
	p, err := graph.PolicyFromEnv()
	require.NoError(t, err)
	require.Equal(t, graph.Policy{Unfused: []string{"linears", "linear-add"}}, p)
	t.Setenv("NSA_UNFUSED", "linears,norms")
	_, err = graph.PolicyFromEnv()
	require.ErrorContains(t, err, `graph: NSA_UNFUSED: policy: no fusion "norms" to be switched off, want "all" or some of ["copies" "linears" `)
}

// TestPolicyOfMachine: without WithPolicy the environment's holds.
func TestPolicyOfMachine(t *testing.T) {
	g := G.NewGraph()
	G.Must(G.Neg(G.NewScalar(g, tensor.Float64, G.WithName("x"))))
	device := graph.WithBackend(newFake())
	t.Setenv("NSA_STRICT", "1")
	_, err := graph.NewMachine(g, device)
	require.ErrorContains(t, err, "strict: fake has no kernel for it")
	newMachine(t, g, device, graph.WithPolicy(graph.Policy{}))
	t.Setenv("NSA_STRICT", "rather")
	_, err = graph.NewMachine(g, device)
	require.ErrorContains(t, err, `graph: NSA_STRICT is "rather"`)
	_, err = graph.NewMachine(g, graph.WithPolicy(graph.Policy{Unfused: []string{""}}))
	require.ErrorContains(t, err, `graph: machine: policy: no fusion ""`)
}

func TestUnsupported(t *testing.T) {
	err := fmt.Errorf("window: %w", graph.Refuse(graph.ReasonAlignment, "%d bytes, want 16", 8))
	var u *graph.Unsupported
	require.True(t, errors.As(err, &u))
	require.Equal(t, graph.ReasonAlignment, u.Reason)
	require.EqualError(t, err, "window: unsupported alignment: 8 bytes, want 16")
	require.Equal(t, "missing", graph.ReasonMissing.String())
	require.Equal(t, "reason 0", graph.Reason(0).String())
}
