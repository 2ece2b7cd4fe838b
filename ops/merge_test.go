package ops_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// TestOpsMergeInGraphs: an op applied twice to the same inputs is one node, and so are its gradients' further outputs; a
// changed parameter or input makes another.
func TestOpsMergeInGraphs(t *testing.T) {
	g := G.NewGraph()
	x := normal("x", 1, 2, 8, 2, 4).Node(g, tensor.Float64)
	z := normal("z", 2, 2, 8, 2, 4).Node(g, tensor.Float64)
	w, pe := normal("w", 3, 8, 8).Node(g, tensor.Float64), normal("pe", 4, 4, 4).Node(g, tensor.Float64)
	w1, w2 := normal("w1", 5, 3, 16).Node(g, tensor.Float64), normal("w2", 6, 4, 3).Node(g, tensor.Float64)
	gain := normal("gain", 7, 4).Node(g, tensor.Float64)
	gates := normal("gates", 8, 2, 8, 2, 2).Node(g, tensor.Float64)
	distinct := []func() (*G.Node, error){
		func() (*G.Node, error) { return ops.SiLU(x) },
		func() (*G.Node, error) { return ops.SiLU(z) },
		func() (*G.Node, error) { return ops.Sigmoid(x) },
		func() (*G.Node, error) { return ops.Softmax(x) },
		func() (*G.Node, error) { return ops.Add(x, z) },
		func() (*G.Node, error) { return ops.Add(z, x) },
		func() (*G.Node, error) { return ops.Add(x, z, z) },
		func() (*G.Node, error) { return ops.Linear(x, w) },
		func() (*G.Node, error) { return ops.Linear(x, w, ops.WithHeads(1)) },
		func() (*G.Node, error) { return ops.Linear(x, w, ops.WithHeads(2)) },
		func() (*G.Node, error) { return ops.Apply(ops.LinearsOp{}, x, w) },
		func() (*G.Node, error) { return ops.Apply(ops.LinearsOp{Heads: [ops.MaxLinears]int{2}}, x, w) },
		func() (*G.Node, error) { return ops.RoPE(x, 10000, 0) },
		func() (*G.Node, error) { return ops.RoPE(x, 10000, 1) },
		func() (*G.Node, error) { return ops.RoPE(x, 10000.000000000002, 0) },
		func() (*G.Node, error) { return ops.RMSNorm(x, gain, 1e-6) },
		func() (*G.Node, error) { return ops.RMSNorm(x, gain, 1.0000000000000002e-6) },
		func() (*G.Node, error) { return ops.CompressMean(x, 4, 2) },
		func() (*G.Node, error) { return ops.CompressMean(x, 4, 4) },
		func() (*G.Node, error) { return ops.CompressMean(x, 2, 2) },
		func() (*G.Node, error) { return ops.CompressMLP(x, pe, w1, w2, 4, 2) },
		func() (*G.Node, error) { return ops.CompressMLP(x, pe, w1, w2, 4, 4) },
		func() (*G.Node, error) { return ops.GatedSum(gates, x, z) },
		func() (*G.Node, error) { return ops.GatedSum(gates, z, x) },
	}
	seen := map[*G.Node]int{}
	hashes := map[uint32]int{}
	for i, make := range distinct {
		a := testutil.Must(make())(t)
		b := testutil.Must(make())(t)
		require.Same(t, a, b, "op %d: %v", i, a)
		require.NotContains(t, seen, a, "op %d: %v", i, a)
		require.NotContains(t, hashes, a.Op().Hashcode(), "op %d: %v", i, a)
		seen[a], hashes[a.Op().Hashcode()] = i, i
	}
}
