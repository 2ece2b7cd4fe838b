package graph_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// hostMemory returns the bytes of the host's memory, and ends the test where they are not known.
func hostMemory(t *testing.T) int {
	t.Helper()
	bytes := graph.NewCPU(1).Device().Memory
	if bytes == 0 {
		t.Skip("the host's memory is not known")
	}
	return int(bytes)
}

// TestHostMemory: what the host does not have is an error that says how much, where the runtime would end the process.
func TestHostMemory(t *testing.T) {
	host := hostMemory(t)
	vector := func(n int) *G.Node {
		return G.NewVector(G.NewGraph(), tensor.Float32, G.WithShape(n), G.WithName("x"))
	}
	asked := func(bytes int) string {
		return fmt.Sprintf("out of memory: asked for %d bytes, the host has %d", bytes, host)
	}

	_, err := graph.NewCPU(1).Alloc(host + 1)
	require.EqualError(t, err, "graph: cpu: "+asked(host+1))

	x := vector(host / 4) // each of two results fits, but not both
	G.Must(ops.SiLU(G.Must(ops.SiLU(x))))
	_, err = graph.NewMachine(x.Graph())
	require.ErrorContains(t, err, "graph: machine: arena of ")
	require.ErrorContains(t, err, fmt.Sprintf("graph: cpu: out of memory: asked for %d bytes, the host has %d", 2*alignedUp(host/4*4), host))

	x = vector(1 << 48)
	G.Must(ops.SiLU(x))
	_, err = graph.NewMachine(x.Graph())
	require.ErrorContains(t, err, "graph: machine: op silu (node 1, shape (281474976710656)): "+asked(1<<50))

	x = vector(1 << 48)
	G.Must(G.Neg(x)) // on the host, whatever the backend
	for _, b := range []graph.Backend{graph.NewCPU(1), newFake()} {
		_, err = graph.NewMachine(x.Graph(), graph.WithBackend(b))
		require.ErrorContains(t, err, "(node 1, shape (281474976710656)): "+asked(1<<50))
	}
}

// alignedUp rounds up to what operands of the CPU are aligned to.
func alignedUp(bytes int) int { return (bytes + 63) / 64 * 64 }
