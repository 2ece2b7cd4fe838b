package ops_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// TestHostMemory: a result that the host has no memory for is an error of the run, and not the end of the process.
func TestHostMemory(t *testing.T) {
	if cpu.HostMemory() == 0 {
		t.Skip("the host's memory is not known")
	}
	g := G.NewGraph()
	q, lse := normal("q", 1, 1, 9, 2, 4).Node(g, tensor.Float32), normal("lse", 2, 1, 2, 9).Node(g, tensor.Float32)
	kc := normal("kc", 3, 1, 2, 2, 4).Node(g, tensor.Float32)
	_, err := ops.SelectBlocks(q, kc, lse, ops.Params{BlockLen: 8, Stride: 1, SelectBlock: 8, TopN: 1 << 44, Window: 1})
	require.NoError(t, err)
	require.ErrorContains(t, G.NewTapeMachine(g).RunAll(), "ops: select blocks: output 0: out of memory: asked for ")
}
