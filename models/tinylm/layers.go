package tinylm

import (
	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// builder adds a model to a graph. It keeps the first error; after one every node is nil.
type builder struct {
	g          *G.ExprGraph
	config     Config
	source     graph.Source
	params     map[string]graph.Param
	learnables G.Nodes
	err        error
}

func newBuilder(g *G.ExprGraph, w *Weights) *builder {
	b := &builder{g: g, config: w.Config.withDefaults(), source: w.source(), params: map[string]graph.Param{}}
	for _, p := range w.Config.LearnableParams() {
		b.params[p.Name] = p
	}
	return b
}

// do runs a constructor unless one before it failed.
func (b *builder) do(f func() (*G.Node, error)) *G.Node {
	if b.err != nil {
		return nil
	}
	var n *G.Node
	n, b.err = f()
	return n
}

// param adds the parameter of the given name, which is used once.
func (b *builder) param(name string) *G.Node {
	n := b.do(func() (*G.Node, error) { return graph.NewParam(b.g, b.params[name], b.source) })
	b.learnables = append(b.learnables, n)
	return n
}

// logits returns the logits [B,S,V] of tokens [B,S]: blocks of x += attention(norm(x)), x += mlp(norm(x)).
func (b *builder) logits(tokens *G.Node) *G.Node {
	embed := b.param("embed.weight")
	x := b.do(func() (*G.Node, error) { return ops.Embedding(embed, tokens) }) // [B,S,dim]
	for i := range b.config.Layers {
		a := layer(i)
		u := b.norm(x, a+"attn_norm")
		x = b.add(x, b.attention(u, a+"attn."))
		u = b.norm(x, a+"mlp_norm")
		hidden := b.linear(u, a+"mlp.w1")
		hidden = b.do(func() (*G.Node, error) { return ops.SiLU(hidden) })
		x = b.add(x, b.linear(hidden, a+"mlp.w2"))
	}
	return b.linear(b.norm(x, "norm"), "head")
}

// attention returns the attention layer of x [B,S,dim], its parameters behind prefix.
func (b *builder) attention(x *G.Node, prefix string) *G.Node {
	if b.config.Attention == Dense {
		return b.dense(x, prefix)
	}
	return b.do(func() (*G.Node, error) {
		l, err := graph.NewNSA(b.g, prefix, b.config.nsa(), b.source)
		if err != nil {
			return nil, err
		}
		b.learnables = append(b.learnables, l.Learnables()...)
		return l.Apply(x)
	})
}

// dense is causal attention over all keys, with rotary embedding.
func (b *builder) dense(x *G.Node, prefix string) *G.Node {
	c := b.config
	q := b.rope(b.linear(x, prefix+"wq", ops.WithHeads(c.Heads)))   // [B,S,Hq,D]
	k := b.rope(b.linear(x, prefix+"wk", ops.WithHeads(c.KVHeads))) // [B,S,Hkv,D]
	v := b.linear(x, prefix+"wv", ops.WithHeads(c.KVHeads))         // [B,S,Hkv,Dv]
	o := b.do(func() (*G.Node, error) { return ops.CausalAttention(q, k, v) })
	return b.linear(o, prefix+"wo")
}

func (b *builder) linear(x *G.Node, name string, opts ...ops.LinearOption) *G.Node {
	w := b.param(name + ".weight")
	return b.do(func() (*G.Node, error) { return ops.Linear(x, w, opts...) })
}

func (b *builder) norm(x *G.Node, name string) *G.Node {
	w := b.param(name + ".weight")
	return b.do(func() (*G.Node, error) { return ops.RMSNorm(x, w, normEps) })
}

func (b *builder) rope(x *G.Node) *G.Node {
	return b.do(func() (*G.Node, error) { return ops.RoPE(x, b.config.RoPEBase, 0) })
}

func (b *builder) add(x, y *G.Node) *G.Node {
	return b.do(func() (*G.Node, error) { return ops.Add(x, y) })
}
