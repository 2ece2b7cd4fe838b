package graph_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/graph"
)

// TestWrongLevel runs itself with a SIMD level that does not exist, which is read when a program starts.
func TestWrongLevel(t *testing.T) {
	if os.Getenv("NSA_CPU") == "abacus" {
		_, err := graph.NewMachine(G.NewGraph())
		require.ErrorContains(t, err, `NSA_CPU="abacus"`)
		return
	}
	c := exec.Command(os.Args[0], "-test.run", "^TestWrongLevel$")
	c.Env = append(os.Environ(), "NSA_CPU=abacus")
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
