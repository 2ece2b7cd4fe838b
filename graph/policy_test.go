package graph_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

func TestPolicyFromEnv(t *testing.T) {
	for _, c := range []struct {
		strict, unfused string
		want            graph.Policy
		fails           string
	}{
		{}, {strict: "0"}, {strict: "1", want: graph.Policy{Strict: true}}, {strict: "true", want: graph.Policy{Strict: true}},
		{strict: "rather", fails: `NSA_STRICT is "rather"`},
		{unfused: "linears,linear-add", want: graph.Policy{Unfused: []string{"linears", "linear-add"}}},
		{unfused: "linears,norms", fails: `graph: NSA_UNFUSED: policy: no fusion "norms" to be switched off, want "all" or some of ["copies" "linears" `},
	} {
		t.Setenv("NSA_STRICT", c.strict)
		t.Setenv("NSA_UNFUSED", c.unfused)
		if p, err := graph.PolicyFromEnv(); c.fails != "" {
			require.ErrorContains(t, err, c.fails)
		} else {
			require.NoError(t, err)
			require.Equal(t, c.want, p)
		}
	}
}

// TestPolicyOfMachine: without WithPolicy the environment's holds.
func TestPolicyOfMachine(t *testing.T) {
	g := G.NewGraph()
	G.Must(G.Neg(G.NewScalar(g, tensor.Float64, G.WithName("x"))))
	device := graph.WithBackend(newFake())
	t.Setenv("NSA_STRICT", "1")
	require.ErrorContains(t, testutil.Err(graph.NewMachine(g, device)), "strict: fake has no kernel for it")
	newMachine(t, g, device, graph.WithPolicy(graph.Policy{}))
	t.Setenv("NSA_STRICT", "rather")
	require.ErrorContains(t, testutil.Err(graph.NewMachine(g, device)), `graph: NSA_STRICT is "rather"`)
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
