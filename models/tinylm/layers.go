package tinylm

import (
	"cmp"
	"math"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// Layer is the nodes of a layer.
type Layer struct {
	Prefix string  // of the names of its parameters
	Stream *G.Node // [B,S,dim], the residual stream before the layer

	nn.NSAParts // of its attention; dense attention has only an Output, Window neither Blocks nor other branches
}

// stream adds the model up to its last norm to the graph of b: for each layer x += attention(norm(x)), x +=
// mlp(norm(x)). It returns the output of the last norm, [B,S,dim], for tokens [B,S]. attention gets a layer's index, x
// and norm(x).
func (c Config) stream(b *nn.Builder, tokens *G.Node, attention func(i int, x, normed *G.Node) *G.Node) *G.Node {
	norm := func(x *G.Node, name string) *G.Node { return b.RMSNorm(x, name, cmp.Or(c.NormEps, 1e-6)) }
	x := b.Node(ops.Embedding(b.Param("embed.weight"), tokens)) // [B,S,dim]
	for i := range c.Layers {
		a := layerPrefix(i)
		x = b.Node(ops.Add(x, attention(i, x, norm(x, a+"attn_norm"))))
		x = b.Node(ops.Add(x, c.mlp(b, norm(x, a+"mlp_norm"), a+"mlp.")))
	}
	return norm(x, "norm")
}

// mlp adds the MLP whose parameters have this prefix to the graph of x [B,S,dim] and returns its output [B,S,dim].
func (c Config) mlp(b *nn.Builder, x *G.Node, prefix string) *G.Node {
	hidden := b.Linear(x, prefix+"w1")
	if c.GatedMLP {
		hidden = b.Node(ops.SwiGLU(hidden, b.Linear(x, prefix+"w3")))
	} else {
		hidden = b.Node(ops.SiLU(hidden))
	}
	return b.Linear(hidden, prefix+"w2")
}

// head returns the logits [...,V] of the last norm's output x [...,dim].
func (c Config) head(b *nn.Builder, x *G.Node) *G.Node {
	if c.TiedHead {
		return b.Node(ops.Linear(x, b.Param("embed.weight")))
	}
	return b.Linear(x, "head")
}

// addLogits adds a model to the graph of b and returns its logits [B,S,V] for tokens [B,S], and its layers. attention has
// the options of their attention. With Align it also returns the scalar loss.
func (c Config) addLogits(b *nn.Builder, tokens *G.Node, attention []nn.ApplyOption) (logits *G.Node, layers []Layer,
	loss *G.Node) {
	var errors G.Nodes
	x := c.stream(b, tokens, func(i int, x, normed *G.Node) *G.Node {
		l := Layer{Prefix: layerPrefix(i), Stream: x}
		dense := func(name string) *G.Node {
			return b.Node(b.Attention(l.Prefix+name, c.denseConfig()).Apply(normed, attention...))
		}
		if c.attentionOf(i) == Dense {
			l.Output = dense("attn.")
		} else {
			var err error
			l.NSAParts, err = b.NSA(l.Prefix+"attn.", c.nsaConfig(i)).ApplyParts(normed, attention...)
			l.Output = b.Node(l.Output, err)
		}
		layers = append(layers, l)
		if c.Align && c.attentionOf(i) != Dense {
			target := dense("dense.")
			errors = append(errors, relativeError(b, l.Output, target))
			return target
		}
		return l.Output
	})
	if len(errors) > 0 && b.Err() == nil {
		loss = b.Node(G.Div(b.Node(G.ReduceAdd(errors)), constant(len(errors), x.Dtype())))
	}
	return c.head(b, x), layers, loss
}

// constant returns a scalar of type dt, float32 or float64.
func constant(n int, dt tensor.Dtype) *G.Node {
	if dt == tensor.Float32 {
		return G.NewConstant(float32(n))
	}
	return G.NewConstant(float64(n))
}

// relativeError adds |x - target|²/|target|² to the graph of b.
func relativeError(b *nn.Builder, x, target *G.Node) *G.Node {
	if b.Err() != nil {
		return nil
	}
	squares := func(n *G.Node) *G.Node { return b.Node(G.Sum(b.Node(G.Square(n)))) }
	return b.Node(G.Div(squares(b.Node(G.Sub(x, target))), squares(target)))
}

// addDecode adds the model to the graph of b for one token of each slot, tokens [B,1]. It returns the logits [B,1,V].
func (c Config) addDecode(b *nn.Builder, tokens *G.Node, caches []nn.Cache) *G.Node {
	x := c.stream(b, tokens, func(i int, _, x *G.Node) *G.Node {
		prefix := layerPrefix(i) + "attn."
		if c.attentionOf(i) == Dense {
			return b.Node(b.Attention(prefix, c.denseConfig()).Decode(x, caches[i]))
		}
		d, err := b.NSA(prefix, c.nsaConfig(i)).Decode(x, caches[i])
		return b.Node(d.Output, err)
	})
	return c.head(b, x)
}

// addPrefill adds the model to the graph of b for tokens [1,S] of a sequence, its first ones or those at run, and writes
// their keys and values to the caches. It returns the logits [1,1,V] at position last [1,1] of tokens.
func (c Config) addPrefill(b *nn.Builder, tokens, last *G.Node, run nn.Run, caches []nn.Cache) *G.Node {
	x := c.stream(b, tokens, func(i int, _, x *G.Node) *G.Node {
		prefix, cache := layerPrefix(i)+"attn.", caches[i]
		if c.attentionOf(i) == Dense {
			l := b.Attention(prefix, c.denseConfig())
			if run.Start != nil {
				return b.Node(l.Extend(x, run, cache))
			}
			p, err := l.ApplyParts(x)
			if err == nil {
				_, err = l.Fill(p, cache)
			}
			return b.Node(p.Output, err)
		}
		l := b.NSA(prefix, c.nsaConfig(i))
		if run.Start != nil {
			p, err := l.Extend(x, run, cache)
			return b.Node(p.Output, err)
		}
		p, err := l.ApplyParts(x)
		if err == nil {
			_, err = l.Fill(p, cache)
		}
		return b.Node(p.Output, err)
	})
	if b.Err() != nil {
		return nil
	}
	rows := b.Node(G.Reshape(x, x.Shape()[1:].Clone()))
	return c.head(b, b.Node(ops.Embedding(rows, last)))
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
