package tinylm

import (
	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/ops"
)

// builder adds a model to a graph.
type builder struct {
	*nn.Builder
	config Config
}

func newBuilder(g *G.ExprGraph, w *Weights) builder {
	return builder{nn.NewBuilder(g, w.Config.LearnableParams(), nn.Values(w.Tensors)), w.Config.withDefaults()}
}

// logits returns the logits [B,S,V] of tokens [B,S]: blocks of x += attention(norm(x)), x += mlp(norm(x)).
func (b builder) logits(tokens *G.Node) *G.Node {
	x := b.Node(ops.Embedding(b.Param("embed.weight"), tokens)) // [B,S,dim]
	for i := range b.config.Layers {
		a := layer(i)
		x = b.Node(ops.Add(x, b.attention(b.norm(x, a+"attn_norm"), a+"attn.")))
		hidden := b.Node(ops.SiLU(b.Linear(b.norm(x, a+"mlp_norm"), a+"mlp.w1")))
		x = b.Node(ops.Add(x, b.Linear(hidden, a+"mlp.w2")))
	}
	return b.Linear(b.norm(x, "norm"), "head")
}

func (b builder) norm(x *G.Node, name string) *G.Node { return b.RMSNorm(x, name, normEps) }

// attention returns the attention layer of x [B,S,dim], its parameters behind prefix.
func (b builder) attention(x *G.Node, prefix string) *G.Node {
	if b.config.Attention == Dense {
		return b.dense(x, prefix)
	}
	return b.Node(b.NSA(prefix, b.config.NSAConfig).Apply(x))
}

// dense is causal attention over all keys, with rotary embedding.
func (b builder) dense(x *G.Node, prefix string) *G.Node {
	c := b.config
	rope := func(x *G.Node) *G.Node { return b.Node(ops.RoPE(x, c.RoPEBase, 0)) }
	q := rope(b.Linear(x, prefix+"wq", ops.WithHeads(c.Heads)))   // [B,S,Hq,D]
	k := rope(b.Linear(x, prefix+"wk", ops.WithHeads(c.KVHeads))) // [B,S,Hkv,D]
	v := b.Linear(x, prefix+"wv", ops.WithHeads(c.KVHeads))       // [B,S,Hkv,Dv]
	return b.Linear(b.Node(ops.CausalAttention(q, k, v)), prefix+"wo")
}
