package nn_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/dist/disttest"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// TestContextTokens: each token is on one rank, in two runs of equal length, and all ranks have as many pairs of a token
// and one that it sees.
func TestContextTokens(t *testing.T) {
	for ranks := 1; ranks < 10; ranks++ {
		for _, n := range []int{1, 2, 7} {
			seq, seen, pairs := 2*n*ranks, map[int]bool{}, map[int]bool{}
			for rank := range ranks {
				list := testutil.Must(nn.ContextTokens(rank, ranks, seq))(t)
				require.Len(t, list, 2*n)
				sum := 0
				for i, token := range list {
					require.False(t, seen[token])
					seen[token] = true
					sum += token + 1
					require.True(t, i%n == 0 || token == list[i-1]+1)
				}
				pairs[sum] = true
			}
			require.Len(t, seen, seq)
			require.Len(t, pairs, 1)
		}
	}
	for want, err := range map[string]error{
		"6 tokens over 2 ranks, want a multiple of 4": testutil.Err(nn.ContextTokens(0, 2, 6)),
		"0 tokens over 2": testutil.Err(nn.ContextTokens(0, 2, 0)),
		"rank 2 of 2":     testutil.Err(nn.ContextTokens(2, 2, 8)),
		"rank 0 of 0":     testutil.Err(nn.ContextTokens(0, 0, 8)),
		"rank -1 of 1":    testutil.Err(nn.ContextTokens(-1, 1, 8)),
	} {
		require.ErrorContains(t, err, want)
	}
}

// TestContextIsOneRank: a layer whose sequences lie over ranks has the outputs and the selected blocks of one on one rank,
// in the same bits, and its gradients up to rounding, also in a group of twice the ranks.
func TestContextIsOneRank(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	without := []decode.Branches{0, 0, decode.BranchesOf(decode.Selected),
		decode.BranchesOf(decode.Compressed, decode.Selected)}
	for i := range testutil.Tries(t, 16, 300) {
		ranks, heads, stride := 1+i%4, 1+r.IntN(2), 1+r.IntN(3)
		c := disttest.Layer{Batch: 1 + r.IntN(2), Dense: i%5 == 4, NSAConfig: nn.NSAConfig{Dim: 1 + r.IntN(9), KVHeads: heads,
			Heads: heads * (1 + r.IntN(2)), KeyDim: 2 * (1 + r.IntN(3)), ValueDim: 1 + r.IntN(5), GateHidden: 1 + r.IntN(4),
			Params: ops.Params{Stride: stride, BlockLen: stride * (1 + r.IntN(3)), TopN: 3 + r.IntN(2),
				Window: 1 + r.IntN(20)}, Without: without[r.IntN(len(without))]}}
		c.Seq, c.SelectBlock = 2*ranks*(1+r.IntN(1+i)), c.BlockLen*(1+r.IntN(2))
		if r.IntN(2) == 0 {
			c.Phi, c.PhiHidden = nn.PhiMLP, 1+r.IntN(4)
		}
		contextIsOneRank(t, c, ranks, 1+i%8/5)
	}
}

// longLayer is a small layer with the blocks of Base().
func longLayer(seq int) disttest.Layer {
	return disttest.Layer{Batch: 1, Seq: seq, NSAConfig: nn.NSAConfig{Dim: 16, Heads: 2, KVHeads: 1, KeyDim: 16,
		ValueDim: 16, GateHidden: 4, Params: ops.Params{BlockLen: 32, Stride: 16, SelectBlock: 64, TopN: 16, Window: 512}}}
}

// TestLongContextIsOneRank is TestContextIsOneRank with longer sequences, in the full form of 32,768 tokens.
func TestLongContextIsOneRank(t *testing.T) {
	c := longLayer(1024)
	if testutil.Full(t) {
		c.Seq = 32768
	}
	contextIsOneRank(t, c, 2, 1)
}

// TestContextInHalf runs a small layer in float32 and in bf16, on a device that computes with the CPU's kernels.
func TestContextInHalf(t *testing.T) {
	disttest.ContextParallel(t, 2, longLayer(1536), func(int) (graph.Backend, error) { return fakedevice.NewHalf(), nil })
}

func openCPU(int) (graph.Backend, error) { return graph.NewCPU(1), nil }

// contextIsOneRank compares the layer on ranks with that on one. The group has several parts of so many ranks, each
// with the same sequences.
func contextIsOneRank(t *testing.T, c disttest.Layer, ranks, parts int) {
	t.Helper()
	name := fmt.Sprintf("%d x %d ranks, %v", parts, ranks, c)
	place := disttest.Placement{Dtype: tensor.Float64, Ranks: 1, Parts: 1, Open: openCPU}
	one := testutil.Must(c.Run(place, nil))(t)[0]
	place.Ranks, place.Parts = ranks, parts
	for _, part := range testutil.Must(c.Run(place, nil))(t) {
		require.Equal(t, one.Output, part.Output, name)
		require.Equal(t, one.Blocks, part.Blocks, name)
		testutil.Within(t, name, part.DX, one.DX, 1e-12)
		for i, dw := range part.DW {
			testutil.Within(t, name, dw, one.DW[i], 1e-12)
		}
	}
}

// TestContextRefuses: what does not fit is an error of Apply.
func TestContextRefuses(t *testing.T) {
	c := longLayer(9)
	g := G.NewGraph()
	l := testutil.Must(nn.NewNSA(g, "b.", c.NSAConfig, nn.Random(tensor.Float64, 1)))(t)
	even := G.NewTensor(g, tensor.Float64, 3, G.WithShape(2, 4, c.Dim), G.WithName("even"))
	odd := G.NewTensor(g, tensor.Float64, 3, G.WithShape(3, 4, c.Dim), G.WithName("odd"))
	ends := G.NewVector(g, tensor.Int32, G.WithShape(3), G.WithName("ends"))
	for want, err := range map[string]error{
		"b.: context: x has 3 rows, want the two chunks": testutil.Err(l.Apply(odd, nn.WithContext(0, 2))),
		"context: rank 2 of 2 ranks":                     testutil.Err(l.Apply(even, nn.WithContext(2, 2))),
		"context: rank 0 of 0 ranks":                     testutil.Err(l.Apply(even, nn.WithContext(0, 0))),
		"WithContext excludes WithCuSeqlens": testutil.Err(l.Apply(even, nn.WithContext(0, 2),
			nn.WithCuSeqlens(ends))),
	} {
		require.ErrorContains(t, err, want)
	}
	_, err := graph.NewPlan(testutil.Must(l.Apply(even, nn.WithContext(1, 2)))(t).Graph())
	require.ErrorContains(t, err, "is for 2 ranks, the machine is one of 1")
}
