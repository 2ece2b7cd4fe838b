package tinylm

import (
	"math"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// Layer is the nodes of a layer.
type Layer struct {
	Prefix string  // of the names of its parameters
	Stream *G.Node // [B,S,dim], the residual stream before the layer

	nn.NSAParts // of its attention; dense attention has only an Output
}

// stream adds the model up to its last norm to the graph of b: for each layer x += attention(norm(x)), x +=
// mlp(norm(x)). It returns the output of the last norm, [B,S,dim], for tokens [B,S]. attention gets a layer's index, x
// and norm(x).
func (c Config) stream(b *nn.Builder, tokens *G.Node, attention func(i int, x, normed *G.Node) *G.Node) *G.Node {
	norm := func(x *G.Node, name string) *G.Node { return b.RMSNorm(x, name, normEps) }
	x := b.Node(ops.Embedding(b.Param("embed.weight"), tokens)) // [B,S,dim]
	for i := range c.Layers {
		a := layerPrefix(i)
		x = b.Node(ops.Add(x, attention(i, x, norm(x, a+"attn_norm"))))
		hidden := b.Node(ops.SiLU(b.Linear(norm(x, a+"mlp_norm"), a+"mlp.w1")))
		x = b.Node(ops.Add(x, b.Linear(hidden, a+"mlp.w2")))
	}
	return norm(x, "norm")
}

// addLogits adds a model to the graph of b and returns its logits [B,S,V] for tokens [B,S], and its layers. cuSeqlens
// has the boundaries of documents; nil: each row is one document.
func (c Config) addLogits(b *nn.Builder, tokens, cuSeqlens *G.Node) (logits *G.Node, layers []Layer) {
	x := c.stream(b, tokens, func(i int, x, normed *G.Node) *G.Node {
		l := Layer{Prefix: layerPrefix(i), Stream: x}
		if c.Attention == Dense {
			l.Output, _, _ = c.dense(b, normed, cuSeqlens, l.Prefix+"attn.")
		} else {
			var err error
			l.NSAParts, err = b.NSA(l.Prefix+"attn.", c.NSAConfig).ApplyParts(normed, nn.WithCuSeqlens(cuSeqlens))
			l.Output = b.Node(l.Output, err)
		}
		layers = append(layers, l)
		return l.Output
	})
	return b.Linear(x, "head"), layers
}

// dense adds causal attention over all keys, with rotary embedding, to the graph of x [B,S,dim]. The names of its
// parameters begin with prefix. It also returns the rotated keys and the values.
func (c Config) dense(b *nn.Builder, x, cuSeqlens *G.Node, prefix string) (y, k, v *G.Node) {
	documents := ops.WithDocuments(nil)
	if cuSeqlens != nil && x != nil {
		documents = ops.WithDocuments(b.Node(ops.DocumentTable(cuSeqlens, x.Shape()[0], x.Shape()[1], ops.Params{})))
	}
	q, k, v := c.project(b, x, prefix)
	rope := func(x *G.Node) *G.Node { return b.Node(ops.RoPE(x, c.RoPEBase, 0, documents)) }
	q, k = rope(q), rope(k)
	return b.Linear(b.Node(ops.CausalAttention(q, k, v, documents)), prefix+"wo"), k, v
}

// project returns the projections of dense attention before rotation: q [B,S,Hq,D], k [B,S,Hkv,D] and v [B,S,Hkv,Dv].
func (c Config) project(b *nn.Builder, x *G.Node, prefix string) (q, k, v *G.Node) {
	heads := func(name string, n int) *G.Node { return b.Linear(x, prefix+name, ops.WithHeads(n)) }
	return heads("wq", c.Heads), heads("wk", c.KVHeads), heads("wv", c.KVHeads)
}

// addDecode adds the model to the graph of b for one token of each slot, tokens [B,1]. It returns the logits [B,1,V].
func (c Config) addDecode(b *nn.Builder, tokens *G.Node, caches []nn.Cache) *G.Node {
	x := c.stream(b, tokens, func(i int, _, x *G.Node) *G.Node {
		prefix := layerPrefix(i) + "attn."
		if c.Attention == Dense {
			q, k, v := c.project(b, x, prefix)
			op := decode.Step{Cache: caches[i].KVCache, Base: c.RoPEBase}
			return b.Linear(b.Apply(op, q, k, v, caches[i].Values, caches[i].PageTable), prefix+"wo")
		}
		d, err := b.NSA(prefix, c.NSAConfig).Decode(x, caches[i])
		return b.Node(d.Output, err)
	})
	return b.Linear(x, "head")
}

// addPrefill adds the model to the graph of b for a whole sequence, tokens [1,S], and writes its keys and values to the
// caches. It returns the logits [1,1,V] at position last [1,1].
func (c Config) addPrefill(b *nn.Builder, tokens, last *G.Node, caches []nn.Cache) *G.Node {
	x := c.stream(b, tokens, func(i int, _, x *G.Node) *G.Node {
		prefix := layerPrefix(i) + "attn."
		if c.Attention == Dense {
			y, k, v := c.dense(b, x, nil, prefix)
			b.Apply(decode.FillCache{Cache: caches[i].KVCache}, k, v, caches[i].Values, caches[i].PageTable)
			return y
		}
		l := b.NSA(prefix, c.NSAConfig)
		p, err := l.ApplyParts(x)
		if err == nil {
			_, err = l.Fill(p, caches[i])
		}
		return b.Node(p.Output, err)
	})
	if b.Err() != nil {
		return nil
	}
	rows := b.Node(G.Reshape(x, x.Shape()[1:].Clone()))
	return b.Linear(b.Node(ops.Embedding(rows, last)), "head")
}

// GateStatistics has weighted means over the gates of queries. Add makes them; weights should sum to 1.
type GateStatistics struct {
	Mean    [decode.NumBranches]float64 // of the compressed, selected and window branch
	Entropy float64                     // mean entropy of the gates' shares in their sum, in nats; at most ln 3
}

// Add adds the gates of a head for one query.
func (s *GateStatistics) Add(gates [decode.NumBranches]float64, weight float64) {
	sum := 0.0
	for _, v := range gates {
		sum += v
	}
	for k, v := range gates {
		s.Mean[k] += v * weight
		if p := v / sum; p > 0 {
			s.Entropy -= p * math.Log(p) * weight
		}
	}
}
