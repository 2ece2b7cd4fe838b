package nn

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// TestAttention: a layer is its ops: projections, rotation, causal attention, projection.
func TestAttention(t *testing.T) {
	c := AttentionConfig{Dim: 6, Heads: 4, KVHeads: 2, KeyDim: 4, ValueDim: 3}
	g := G.NewGraph()
	x := G.NewTensor(g, tensor.Float64, 3, G.WithShape(2, 5, 6), G.WithName("x"), G.WithInit(G.Gaussian(0, 1)))
	l := testutil.Must(NewAttention(g, "a.", c, Random(tensor.Float64, 1)))(t)
	y := testutil.Must(l.Apply(x))(t)
	p := map[string]*G.Node{}
	for _, n := range g.AllNodes() {
		p[n.Name()] = n
	}
	heads := func(name string, n int) *G.Node {
		return G.Must(ops.Linear(x, p["a."+name+".weight"], ops.WithHeads(n)))
	}
	q, k := G.Must(ops.RoPE(heads("wq", 4), 10000, 0)), G.Must(ops.RoPE(heads("wk", 2), 10000, 0))
	want := G.Must(ops.Linear(G.Must(ops.CausalAttention(q, k, heads("wv", 2))), p["a.wo.weight"]))
	require.Equal(t, want, y, "Gorgonia merges equal nodes")

	require.ErrorContains(t, testutil.Err((*Attention)(nil).Apply(x)), "nil layer")
	require.ErrorContains(t, testutil.Err(l.Apply(q)), "nn: attention a.: x has shape (2, 5, 4, 4), want [B,S,6]")
	require.ErrorContains(t, testutil.Err(l.Apply(x, nil)), "nil option")
	cache := Cache{KVCache: AttentionConfig{Dim: 6, Heads: 4, KVHeads: 2, KeyDim: 4, ValueDim: 4}.Cache(1, 1, 8)}
	require.ErrorContains(t, testutil.Err(l.Decode(x, cache)), "not of this layer")
	for want, change := range map[string]func(c *AttentionConfig){
		"dim is 0":                             func(c *AttentionConfig) { c.Dim = 0 },
		"heads 4 not a multiple of kv heads 3": func(c *AttentionConfig) { c.KVHeads = 3 },
		"key dim 5 is odd":                     func(c *AttentionConfig) { c.KeyDim = 5 },
		"rope base is 1":                       func(c *AttentionConfig) { c.RoPEBase = 1 },
		"is too large":                         func(c *AttentionConfig) { c.Dim, c.Heads = maxSize, maxSize },
	} {
		bad := c
		change(&bad)
		require.ErrorContains(t, bad.Validate(), want)
	}
}
