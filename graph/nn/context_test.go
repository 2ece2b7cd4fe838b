package nn

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/dist/disttest"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// TestContextTokens: each token is on one rank, in two runs of equal length, and all ranks have as many pairs of a token
// and one that it sees.
func TestContextTokens(t *testing.T) {
	for ranks := 1; ranks < 10; ranks++ {
		for _, n := range []int{1, 2, 7} {
			seq, seen, pairs := 2*n*ranks, map[int]bool{}, map[int]bool{}
			for rank := range ranks {
				list := testutil.Must(ContextTokens(rank, ranks, seq))(t)
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
		"6 tokens over 2 ranks, want a multiple of 4": testutil.Err(ContextTokens(0, 2, 6)),
		"0 tokens over 2": testutil.Err(ContextTokens(0, 2, 0)),
		"rank 2 of 2":     testutil.Err(ContextTokens(2, 2, 8)),
		"rank 0 of 0":     testutil.Err(ContextTokens(0, 0, 8)),
		"rank -1 of 1":    testutil.Err(ContextTokens(-1, 1, 8)),
	} {
		require.ErrorContains(t, err, want)
	}
}

// contextCase is a layer and its input: of NSA, or dense.
type contextCase struct {
	NSAConfig
	dense      bool
	batch, seq int
}

func (c contextCase) String() string {
	return fmt.Sprintf("%d x %d tokens, dense %v, %+v", c.batch, c.seq, c.dense, c.NSAConfig)
}

// contextResult is what a layer computes for the tokens of a rank, and gradients: of these tokens, and of the parameters.
type contextResult struct {
	output, dx []float64 // [B,S,Dim]
	blocks     []int32   // [B,S,Hkv,n]
	dw         [][]float64
}

// contextNet is the graph of a case.
type contextNet struct {
	output, blocks *G.Node // without selected blocks nil
	dx             *G.Node // the gradient of the input, before the ranks average it
	weights        G.Nodes
}

// build returns the graph of the layer for some tokens of its sequences. The cost is the sum of the outputs times random
// numbers.
func (c contextCase) build(tokens []int, opts []ApplyOption) (n contextNet, err error) {
	disttest.Building.Lock()
	defer disttest.Building.Unlock()
	g := G.NewGraph()
	in := c.rows(g, "x", 1, tokens)
	x, source := G.Must(G.Neg(in)), Random(tensor.Float64, 4)
	if c.dense {
		b := NewBuilder(g, c.NSAConfig.dense().LayerParams("attn."), source)
		n.output, err = b.Attention("attn.", c.NSAConfig.dense()).Apply(x, opts...)
		n.weights = b.Learnables()
	} else {
		var l *NSA
		var p NSAParts
		if l, err = NewNSA(g, "attn.", c.NSAConfig, source); err == nil {
			p, err = l.ApplyParts(x, opts...)
		}
		n.output, n.blocks, n.weights = p.Output, p.Blocks, l.Learnables()
	}
	if err != nil {
		return n, err
	}
	cost := G.Must(G.Sum(G.Must(G.HadamardProd(n.output, c.rows(g, "r", 2, tokens)))))
	grads, err := graph.Grad(cost, append(G.Nodes{in}, n.weights...)...)
	if err == nil {
		n.dx = G.Must(G.Neg(grads[0]))
	}
	return n, err
}

// run runs the layer for some tokens of its sequences.
func (c contextCase) run(tokens []int, opts []ApplyOption, machine ...graph.Option) (r contextResult, err error) {
	n, err := c.build(tokens, opts)
	if err != nil {
		return r, err
	}
	keep := G.Nodes{n.output, n.dx}
	if n.blocks != nil {
		keep = append(keep, n.blocks)
	}
	m, err := graph.NewMachine(n.output.Graph(), append(machine, graph.WithBackend(graph.NewCPU(1)), graph.WithKeep(keep...))...)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if err := m.RunAll(); err != nil {
		return r, err
	}
	floats := func(v G.Value) []float64 { return slices.Clone(v.Data().([]float64)) }
	r.output, r.dx = floats(n.output.Value()), floats(n.dx.Value())
	if n.blocks != nil {
		r.blocks = slices.Clone(n.blocks.Value().Data().([]int32))
	}
	for _, w := range n.weights {
		d, err := w.Grad()
		if err != nil {
			return r, err
		}
		r.dw = append(r.dw, floats(d))
	}
	return r, nil
}

// rows adds an input, some tokens of random sequences: [B,S,Dim], or of a part of a sequence [2B,len(tokens)/2,Dim].
func (c contextCase) rows(g *G.ExprGraph, name string, seed uint64, tokens []int) *G.Node {
	part, rows := tokensOf(testutil.Normal(seed, c.batch*c.seq*c.Dim), c.batch, c.seq, tokens), c.batch
	if len(tokens) < c.seq {
		rows *= 2
	}
	return G.NodeFromAny(g, tensor.New(tensor.WithShape(rows, len(part)/rows/c.Dim, c.Dim), tensor.WithBacking(part)),
		G.WithName(name))
}

// tokensOf returns those rows of a [B,S,...] that belong to the tokens.
func tokensOf[T any](a []T, batch, seq int, tokens []int) (part []T) {
	width := len(a) / batch / seq
	for b := range batch {
		for _, t := range tokens {
			part = append(part, a[(b*seq+t)*width:][:width]...)
		}
	}
	return part
}

// TestContextIsOneRank: a layer whose sequences lie over ranks has the outputs and the selected blocks of one on one rank,
// in the same bits, and its gradients up to rounding, also in a group of twice the ranks.
func TestContextIsOneRank(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for i := range testutil.Tries(t, 16, 300) {
		ranks, heads, stride := 1+i%4, 1+r.IntN(2), 1+r.IntN(3)
		c := contextCase{batch: 1 + r.IntN(2), dense: i%5 == 4, NSAConfig: NSAConfig{Dim: 1 + r.IntN(9), KVHeads: heads,
			Heads: heads * (1 + r.IntN(2)), KeyDim: 2 * (1 + r.IntN(3)), ValueDim: 1 + r.IntN(5), GateHidden: 1 + r.IntN(4),
			Params: ops.Params{Stride: stride, BlockLen: stride * (1 + r.IntN(3)), TopN: 3 + r.IntN(2),
				Window: 1 + r.IntN(20)}, NoSelected: i%7 == 6}}
		c.seq, c.SelectBlock = 2*ranks*(1+r.IntN(1+i)), c.BlockLen*(1+r.IntN(2))
		if r.IntN(2) == 0 {
			c.Phi, c.PhiHidden = PhiMLP, 1+r.IntN(4)
		}
		c.onRanks(t, ranks, 1+i%8/5)
	}
}

// TestLongContextIsOneRank is TestContextIsOneRank with longer sequences, in the full form of 32,768 tokens.
func TestLongContextIsOneRank(t *testing.T) {
	c := contextCase{batch: 1, seq: 1024, NSAConfig: NSAConfig{Dim: 16, Heads: 2, KVHeads: 1, KeyDim: 16, ValueDim: 16,
		GateHidden: 4, Params: ops.Params{BlockLen: 32, Stride: 16, SelectBlock: 64, TopN: 16, Window: 512}}}
	if testutil.Full(t) {
		c.seq = 32768
	}
	c.onRanks(t, 2, 1)
}

// onRanks compares the layer on ranks with that on one. The group has several parts of so many ranks, each with the same
// sequences.
func (c contextCase) onRanks(t *testing.T, ranks, parts int) {
	t.Helper()
	name := fmt.Sprintf("%d x %d ranks, %v", parts, ranks, c)
	whole := testutil.Must(c.run(testutil.Must(ContextTokens(0, 1, c.seq))(t), nil))(t)
	results := make([]contextResult, parts*ranks)
	require.NoError(t, disttest.OnRanks(parts*ranks, func(g graph.Group) (err error) {
		rank := g.Rank() % ranks
		tokens, err := ContextTokens(rank, ranks, c.seq)
		if err == nil {
			results[g.Rank()], err = c.run(tokens, []ApplyOption{WithContext(rank, ranks)}, graph.WithGroup(g))
		}
		return err
	}), name)
	for rank, part := range results {
		tokens := testutil.Must(ContextTokens(rank%ranks, ranks, c.seq))(t)
		require.Equal(t, tokensOf(whole.output, c.batch, c.seq, tokens), part.output, name)
		if whole.blocks != nil {
			require.Equal(t, tokensOf(whole.blocks, c.batch, c.seq, tokens), part.blocks, name)
		}
		testutil.Within(t, name, part.dx, tokensOf(whole.dx, c.batch, c.seq, tokens), 1e-12)
		for i, dw := range part.dw { // the mean over the ranks
			for j := range dw {
				dw[j] *= float64(ranks)
			}
			testutil.Within(t, name, dw, whole.dw[i], 1e-12)
		}
	}
}

// TestContextRefuses: what does not fit is an error of Apply.
func TestContextRefuses(t *testing.T) {
	c := contextCase{NSAConfig: nsaConfig(), batch: 1, seq: 9}
	g := G.NewGraph()
	l := testutil.Must(NewNSA(g, "b.", c.NSAConfig, Random(tensor.Float64, 1)))(t)
	even := G.NewTensor(g, tensor.Float64, 3, G.WithShape(2, 4, c.Dim), G.WithName("even"))
	odd := G.NewTensor(g, tensor.Float64, 3, G.WithShape(3, 4, c.Dim), G.WithName("odd"))
	ends := G.NewVector(g, tensor.Int32, G.WithShape(3), G.WithName("ends"))
	for want, err := range map[string]error{
		"b.: context: x has 3 rows, want the two chunks": testutil.Err(l.Apply(odd, WithContext(0, 2))),
		"context: rank 2 of 2 ranks":                     testutil.Err(l.Apply(even, WithContext(2, 2))),
		"context: rank 0 of 0 ranks":                     testutil.Err(l.Apply(even, WithContext(0, 0))),
		"WithContext excludes WithCuSeqlens":             testutil.Err(l.Apply(even, WithContext(0, 2), WithCuSeqlens(ends))),
	} {
		require.ErrorContains(t, err, want)
	}
	_, err := graph.NewPlan(testutil.Must(l.Apply(even, WithContext(1, 2)))(t).Graph())
	require.ErrorContains(t, err, "is for 2 ranks, the machine is one of 1")
}
