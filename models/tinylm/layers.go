package tinylm

import (
	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/ops"
)

// logits adds a model to the graph of b and returns its logits [B,S,V] of tokens [B,S]: blocks of x += attention(norm(x)),
// x += mlp(norm(x)).
func (c Config) logits(b *nn.Builder, tokens *G.Node) *G.Node {
	norm := func(x *G.Node, name string) *G.Node { return b.RMSNorm(x, name, normEps) }
	x := b.Node(ops.Embedding(b.Param("embed.weight"), tokens)) // [B,S,dim]
	for i := range c.Layers {
		a := layer(i)
		x = b.Node(ops.Add(x, c.attention(b, norm(x, a+"attn_norm"), a+"attn.")))
		hidden := b.Node(ops.SiLU(b.Linear(norm(x, a+"mlp_norm"), a+"mlp.w1")))
		x = b.Node(ops.Add(x, b.Linear(hidden, a+"mlp.w2")))
	}
	return b.Linear(norm(x, "norm"), "head")
}

// attention adds the attention layer of x [B,S,dim], its parameters behind prefix: NSA, or causal attention over all keys with
// rotary embedding.
func (c Config) attention(b *nn.Builder, x *G.Node, prefix string) *G.Node {
	if c.Attention != Dense {
		return b.Node(b.NSA(prefix, c.NSAConfig).Apply(x))
	}
	rope := func(x *G.Node) *G.Node { return b.Node(ops.RoPE(x, c.RoPEBase, 0)) }
	q := rope(b.Linear(x, prefix+"wq", ops.WithHeads(c.Heads)))   // [B,S,Hq,D]
	k := rope(b.Linear(x, prefix+"wk", ops.WithHeads(c.KVHeads))) // [B,S,Hkv,D]
	v := b.Linear(x, prefix+"wv", ops.WithHeads(c.KVHeads))       // [B,S,Hkv,Dv]
	return b.Linear(b.Node(ops.CausalAttention(q, k, v)), prefix+"wo")
}
