package nn

import (
	"cmp"
	"math"
	"strings"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// AttentionConfig holds the sizes of a layer of dense causal attention. A field is required unless its comment says
// what zero means.
type AttentionConfig struct {
	Dim      int     // width of the layer's input and output
	Heads    int     // query heads, a multiple of KVHeads
	KVHeads  int     // key/value heads
	KeyDim   int     // width of a query and a key; even, because the rotary embedding rotates pairs
	ValueDim int     // width of a value
	RoPEBase float64 // base of the rotary embedding's wavelengths; 0 is 10000
	// of the rotary embedding; the zero value scales nothing
	RoPEScaling ops.RoPEScaling `json:",omitzero"`

	Projections
}

// Projections says what an attention layer has beside the weights of its projections. The zero value is TinyLM's and
// Llama's: nothing.
type Projections struct {
	QKVBias    bool `json:",omitempty"` // biases of the projections to queries, keys and values, as in Qwen2
	OutputBias bool `json:",omitempty"` // a bias of the output projection
	// if not 0, each head's queries and keys are normed by an RMSNorm with this eps before they are rotated, as in Qwen3;
	// all heads share its weight, and so do the keys of all branches
	QKNorm float64 `json:",omitempty"`
}

func (p Projections) check() error {
	if p.QKNorm != 0 && !(p.QKNorm > 0 && p.QKNorm < 1) {
		return fault.Of("QKNorm", "qk norm", "has the eps %v, want 0 for none or one between 0 and 1", p.QKNorm)
	}
	return nil
}

// params returns the layer's parameters that p adds. heads are the outputs of the projections with a bias by name.
func (p Projections) params(prefix string, keyDim, dim int, heads []Param) (list []Param) {
	if p.QKVBias {
		for _, h := range heads {
			list = append(list, Param{strings.TrimSuffix(h.Name, "weight") + "bias", h.Shape[:1], nil})
		}
	}
	if p.OutputBias {
		list = append(list, Param{prefix + "wo.bias", tensor.Shape{dim}, nil})
	}
	if p.QKNorm != 0 {
		for _, name := range []string{"q_norm", "k_norm"} {
			list = append(list, Param{prefix + name + ".weight", tensor.Shape{keyDim}, Ones()})
		}
	}
	return list
}

// norm returns queries or keys [B,S,H,D], normed by the given norm of the layer if it has one.
func (p Projections) norm(b *Builder, x *G.Node, name string) *G.Node {
	if p.QKNorm == 0 {
		return x
	}
	return b.RMSNorm(x, name, p.QKNorm)
}

// Validate returns an error that names a size that is wrong or does not fit another one.
func (c AttentionConfig) Validate() (err error) {
	defer fault.Name(&err, "nn", "attention")
	return c.check()
}

func (c AttentionConfig) check() error {
	for _, s := range []struct {
		name, label string
		v           int
	}{
		{"Dim", "dim", c.Dim}, {"Heads", "heads", c.Heads}, {"KVHeads", "kv heads", c.KVHeads},
		{"KeyDim", "key dim", c.KeyDim}, {"ValueDim", "value dim", c.ValueDim},
	} {
		if err := checkSize(s.name, s.label, s.v); err != nil {
			return err
		}
	}
	switch {
	case c.Heads%c.KVHeads != 0:
		return fault.Between("Heads KVHeads", "heads %d not a multiple of kv heads %d", c.Heads, c.KVHeads)
	case c.KeyDim%2 != 0:
		return fault.Of("KeyDim", "key dim", "%d is odd, want an even one", c.KeyDim)
	case c.RoPEBase != 0 && !(c.RoPEBase > 1 && c.RoPEBase <= math.MaxFloat64):
		return fault.Of("RoPEBase", "rope base", "is %v, want a finite number above 1", c.RoPEBase)
	}
	return cmp.Or(c.RoPEScaling.Validate(), c.Projections.check(), checkParams(c.LayerParams(""), "Dim Heads KVHeads KeyDim ValueDim"))
}

// LayerParams returns the layer's parameters. Their names begin with prefix (such as "layers.0.attn."). Weights are
// [out,in], with first values from LeCunNormal.
func (c AttentionConfig) LayerParams(prefix string) []Param {
	list := []Param{
		linearParam(prefix+"wq", c.Heads*c.KeyDim, c.Dim), linearParam(prefix+"wk", c.KVHeads*c.KeyDim, c.Dim),
		linearParam(prefix+"wv", c.KVHeads*c.ValueDim, c.Dim), linearParam(prefix+"wo", c.Dim, c.Heads*c.ValueDim),
	}
	return append(list, c.Projections.params(prefix, c.KeyDim, c.Dim, list[:3])...)
}

// Cache returns the sizes of a cache of the layer. slots is the number of sequences; they share pages of pageLen tokens
// each.
func (c AttentionConfig) Cache(slots, pages, pageLen int) decode.KVCache {
	return decode.KVCache{KVHeads: c.KVHeads, KeyDim: c.KeyDim, ValueDim: c.ValueDim, Slots: slots, Pages: pages,
		PageLen: pageLen}
}

// Attention is a layer of dense causal attention: projections, rotary embedding, grouped queries and the output
// projection.
type Attention struct {
	config  AttentionConfig
	prefix  string
	builder Builder
}

// NewAttention adds the parameters of a layer to g, with values from src. Their names begin with prefix.
func NewAttention(g *G.ExprGraph, prefix string, c AttentionConfig, src Source) (*Attention, error) {
	b := NewBuilder(g, c.LayerParams(prefix), src)
	l := b.Attention(prefix, c)
	return l, b.err
}

// Attention adds the parameters of a layer to the graph. They must be among the parameters of b, see
// AttentionConfig.LayerParams. After an error it returns nil; Apply of a nil layer returns an error.
func (b *Builder) Attention(prefix string, c AttentionConfig) *Attention {
	if b.err == nil {
		b.err = c.Validate()
	}
	c.RoPEBase = cmp.Or(c.RoPEBase, DefaultRoPEBase)
	b.layerParams(c.LayerParams(prefix))
	if b.err != nil {
		return nil
	}
	return &Attention{c, prefix, *b}
}

// AttentionParts holds the nodes of a layer's output and of what it comes from.
type AttentionParts struct {
	Output *G.Node // [B,S,Dim]
	K, V   *G.Node // [B,S,Hkv,D], rotated, and [B,S,Hkv,Dv]; WithContext those of the whole sequence of each row
}

// Apply adds the layer to the graph of x [B,S,Dim] and returns its output [B,S,Dim]. Position 0 is the first token of a
// row or, in packed rows, of a document, or WithContext of a sequence.
func (l *Attention) Apply(x *G.Node, opts ...ApplyOption) (*G.Node, error) {
	p, err := l.ApplyParts(x, opts...)
	return p.Output, err
}

// ApplyParts is Apply, but returns the inner nodes, too.
func (l *Attention) ApplyParts(x *G.Node, opts ...ApplyOption) (p AttentionParts, err error) {
	if l == nil {
		return p, errNilLayer
	}
	defer fault.Name(&err, "nn", "attention "+l.prefix)
	b := l.builder // a copy, so that an error stays in this call
	seqs, err := b.layout(x, l.config.Dim, ops.Params{}, opts)
	if err != nil {
		return p, err
	}
	whole := func(x *G.Node) *G.Node { return seqs.perRow(&b, seqs.sequences(&b, x)) }
	p = l.parts(&b, x, seqs.position, func(k, v *G.Node) (*G.Node, *G.Node) { return whole(k), whole(v) })
	if b.err != nil {
		return AttentionParts{}, b.err
	}
	return p, nil
}

// parts adds the layer to the graph of x. position is the option of ops for documents or a start. context gets the keys
// and values of the tokens of x and returns those that they attend to.
func (l *Attention) parts(b *Builder, x *G.Node, position ops.Option,
	context func(k, v *G.Node) (*G.Node, *G.Node)) (p AttentionParts) {
	q, k, v := l.project(b, x)
	rope := func(x *G.Node) *G.Node {
		return b.Node(ops.ScaledRoPE(x, l.config.RoPEBase, l.config.RoPEScaling, 0, position))
	}
	q, k = rope(q), rope(k)
	p.K, p.V = context(k, v)
	p.Output = b.Linear(b.Node(ops.CausalAttention(q, p.K, p.V, position)), l.prefix+"wo")
	return p
}

// project returns the projections of x [B,S,Dim], normed but not yet rotated: q [B,S,Hq,D], k [B,S,Hkv,D] and v [B,S,Hkv,Dv].
func (l *Attention) project(b *Builder, x *G.Node) (q, k, v *G.Node) {
	heads := func(name string, n int) *G.Node { return b.Linear(x, l.prefix+name, ops.WithHeads(n)) }
	q, k, v = heads("wq", l.config.Heads), heads("wk", l.config.KVHeads), heads("wv", l.config.KVHeads)
	return l.config.norm(b, q, l.prefix+"q_norm"), l.config.norm(b, k, l.prefix+"k_norm"), v
}

// Decode adds the layer to the graph of x [B,1,Dim], one token for each slot of the cache. The output [B,1,Dim] is that
// of Apply for the last token of the whole sequence.
func (l *Attention) Decode(x *G.Node, c Cache) (_ *G.Node, err error) {
	if l == nil {
		return nil, errNilLayer
	}
	defer fault.Name(&err, "nn", "attention "+l.prefix+": decode")
	if err := c.check(l.config.Cache(c.Slots, c.Pages, c.PageLen)); err != nil {
		return nil, err
	}
	b := l.builder
	q, k, v := l.project(&b, x)
	o := b.Apply(decode.Step{Cache: c.KVCache, Base: l.config.RoPEBase, Scaling: l.config.RoPEScaling}, q, k, v, c.Values, c.PageTable)
	return b.Linear(o, l.prefix+"wo"), b.err
}

// Fill stores the keys and values of whole sequences in the cache. p is the result of ApplyParts for these sequences.
// Fill returns the numbers of tokens stored, int32 [R].
func (l *Attention) Fill(p AttentionParts, c Cache) (stored *G.Node, err error) {
	if l == nil {
		return nil, errNilLayer
	}
	defer fault.Name(&err, "nn", "attention "+l.prefix+": fill")
	if err := c.check(l.config.Cache(c.Slots, c.Pages, c.PageLen)); err != nil {
		return nil, err
	}
	return spec.Apply(decode.FillCache{Cache: c.KVCache}, p.K, p.V, c.Values, c.PageTable)
}

// Extend is NSA.Extend for dense attention. It returns the output [R,S,Dim].
func (l *Attention) Extend(x *G.Node, run Run, c Cache) (_ *G.Node, err error) {
	if l == nil {
		return nil, errNilLayer
	}
	defer fault.Name(&err, "nn", "attention "+l.prefix+": extend")
	if err := c.check(l.config.Cache(c.Slots, c.Pages, c.PageLen)); err != nil {
		return nil, err
	}
	b := l.builder
	p := l.parts(&b, x, ops.WithStart(run.Start), func(k, v *G.Node) (*G.Node, *G.Node) {
		out := b.extend(c, run, G.Nodes{k, v}, 1)
		return out[0], out[1]
	})
	return p.Output, b.err
}
