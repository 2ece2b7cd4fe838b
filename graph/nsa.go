package graph

import (
	"errors"
	"fmt"
	"math"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/ops"
)

// Phi is how keys and values of a block are compressed into one.
type Phi string

// The kinds of Phi.
const (
	PhiMean Phi = "mean" // the mean of the block
	PhiMLP  Phi = "mlp"  // an MLP over the block with a position embedding inside it, of its own for keys and values
)

// GateActivation is the last function of the gates' MLP.
type GateActivation string

// The kinds of GateActivation.
const (
	GateSigmoid GateActivation = "sigmoid" // each gate by itself in (0, 1)
	GateSoftmax GateActivation = "softmax" // the three gates of a head sum to 1
)

// NSAConfig are the sizes of an NSA layer. All of them are required but for those that say what zero means.
type NSAConfig struct {
	Dim      int // width of the layer's input and output
	Heads    int // query heads, a multiple of KVHeads
	KVHeads  int // key/value heads: the groups that share a selection
	KeyDim   int // of a query and a key; even, since pairs are rotated
	ValueDim int // of a value

	ops.Params

	Phi            Phi            // "" is PhiMean
	PhiHidden      int            // hidden width of the compression's MLP; only with PhiMLP
	GateHidden     int            // hidden width of the gates' MLP
	GateActivation GateActivation // "" is GateSigmoid
	RoPEBase       float64        // base of the rotary embedding's wavelengths; 0 is 10000
}

// DefaultRoPEBase is the base of the rotary embedding where none is given.
const DefaultRoPEBase = 10000

// Bounds of what a layer may ask for, so that no product of sizes overflows and no allocation panics.
const (
	maxSize     = 1 << 24 // each of the sizes
	maxElements = 1 << 40 // elements of a parameter
)

// branches are the names of the three branches in the order of the gates.
var branches = [...]string{"cmp", "sel", "win"}

// Validate returns an error that names the sizes that are wrong or do not fit each other.
func (c NSAConfig) Validate() error {
	if err := c.validate(); err != nil {
		return fmt.Errorf("graph: nsa: %w", err)
	}
	return nil
}

func (c NSAConfig) validate() error {
	for _, s := range []struct {
		name string
		v    int
	}{
		{"dim", c.Dim}, {"heads", c.Heads}, {"kv heads", c.KVHeads}, {"key dim", c.KeyDim}, {"value dim", c.ValueDim},
		{"gate hidden", c.GateHidden},
	} {
		if s.v < 1 || s.v > maxSize {
			return fmt.Errorf("%s is %d, want 1 to %d", s.name, s.v, maxSize)
		}
	}
	if c.Heads%c.KVHeads != 0 {
		return fmt.Errorf("heads %d not a multiple of kv heads %d", c.Heads, c.KVHeads)
	}
	if c.KeyDim%2 != 0 {
		return fmt.Errorf("key dim %d is odd, the rotary embedding wants pairs", c.KeyDim)
	}
	if err := c.Params.Validate(); err != nil {
		return err
	}
	switch c.Phi {
	case "", PhiMean:
	case PhiMLP:
		if c.PhiHidden < 1 || c.PhiHidden > maxSize || c.BlockLen > maxSize {
			return fmt.Errorf("phi hidden is %d and block length l %d, want 1 to %d with phi %q", c.PhiHidden, c.BlockLen, maxSize, c.Phi)
		}
	default:
		return fmt.Errorf("phi is %q, want %q or %q", c.Phi, PhiMean, PhiMLP)
	}
	switch c.GateActivation {
	case "", GateSigmoid, GateSoftmax:
	default:
		return fmt.Errorf("gate activation is %q, want %q or %q", c.GateActivation, GateSigmoid, GateSoftmax)
	}
	if c.RoPEBase != 0 && !(c.RoPEBase > 1 && c.RoPEBase <= math.MaxFloat64) {
		return fmt.Errorf("rope base is %v, want a finite number above 1", c.RoPEBase)
	}
	for _, p := range c.LayerParams("") {
		if rows, cols := p.Shape[0], p.Shape[len(p.Shape)-1]; rows < 1 || cols < 1 || rows > maxElements/cols {
			return fmt.Errorf("parameter %s of shape %v is too large", p.Name, p.Shape)
		}
	}
	return nil
}

// LayerParams returns the layer's parameters, their names behind prefix (such as "layers.0.attn."). Weights of linear
// layers are [out,in]. Projections and compression start from LeCunNormal, position embeddings from Normal(0.02), the
// gates' weights from XavierUniform and their biases from zero.
func (c NSAConfig) LayerParams(prefix string) []Param {
	linear := func(name string, out, in int) Param {
		return Param{prefix + name + ".weight", tensor.Shape{out, in}, LeCunNormal(in)}
	}
	gate := func(name string, out, in int) []Param {
		return []Param{
			{prefix + name + ".weight", tensor.Shape{out, in}, XavierUniform(in, out)},
			{prefix + name + ".bias", tensor.Shape{out}, Init{}},
		}
	}
	list := []Param{linear("wq", c.Heads*c.KeyDim, c.Dim)}
	for _, b := range branches {
		list = append(list, linear("wk_"+b, c.KVHeads*c.KeyDim, c.Dim), linear("wv_"+b, c.KVHeads*c.ValueDim, c.Dim))
	}
	if c.Phi == PhiMLP {
		for _, s := range []struct {
			name string
			dim  int
		}{{"phi_k.", c.KeyDim}, {"phi_v.", c.ValueDim}} {
			list = append(list, Param{prefix + s.name + "pe", tensor.Shape{c.BlockLen, s.dim}, Normal(0.02)},
				linear(s.name+"w1", c.PhiHidden, c.BlockLen*s.dim), linear(s.name+"w2", s.dim, c.PhiHidden))
		}
	}
	list = append(list, gate("gate.w1", c.GateHidden, c.Dim)...)
	list = append(list, gate("gate.w2", len(branches)*c.Heads, c.GateHidden)...)
	return append(list, linear("wo", c.Dim, c.Heads*c.ValueDim))
}

// NSA is a layer of Native Sparse Attention: projections, rotary embedding, the compressed, the selected and the window
// branch, their gates and the output projection (arXiv 2502.11089, Section 3).
type NSA struct {
	config     NSAConfig
	prefix     string
	params     map[string]*G.Node
	learnables G.Nodes
}

// NewNSA adds the parameters of a layer to g, with values from src. Their names begin with prefix, which must differ
// between the layers of a graph, see NewParam.
func NewNSA(g *G.ExprGraph, prefix string, c NSAConfig, src Source) (*NSA, error) {
	if g == nil || src == nil {
		return nil, errors.New("graph: nsa: nil graph or source")
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.RoPEBase == 0 {
		c.RoPEBase = DefaultRoPEBase
	}
	l := &NSA{config: c, prefix: prefix, params: map[string]*G.Node{}}
	for _, p := range c.LayerParams(prefix) {
		n, err := NewParam(g, p, src)
		if err != nil {
			return nil, fmt.Errorf("graph: nsa: %w", err)
		}
		l.params[p.Name] = n
		l.learnables = append(l.learnables, n)
	}
	return l, nil
}

// Learnables returns the nodes of the parameters in the order of LayerParams, as gorgonia.Grad and solvers want them.
func (l *NSA) Learnables() G.Nodes { return l.learnables }

// Config returns the layer's sizes.
func (l *NSA) Config() NSAConfig { return l.config }

// Apply adds the layer to the graph of x [B,S,Dim] and returns its output [B,S,Dim]. Position 0 is the first of S.
func (l *NSA) Apply(x *G.Node) (*G.Node, error) {
	y, err := l.apply(x)
	if err != nil {
		return nil, fmt.Errorf("graph: nsa %s: %w", l.prefix, err)
	}
	return y, nil
}

func (l *NSA) apply(x *G.Node) (*G.Node, error) {
	if x == nil {
		return nil, errors.New("x is nil")
	}
	if s := x.Shape(); s.Dims() != 3 || s[2] != l.config.Dim {
		return nil, fmt.Errorf("x has shape %v, want [B,S,%d]", s, l.config.Dim)
	}
	c := l.config
	b := builder{}
	q := b.rope(b.linear(x, l.param("wq.weight"), ops.WithHeads(c.Heads)), c.RoPEBase) // [B,S,Hq,D]
	var k, v [len(branches)]*G.Node                                                    // [B,S,Hkv,D], [B,S,Hkv,Dv]
	for i, name := range branches {
		k[i] = b.rope(b.linear(x, l.param("wk_"+name+".weight"), ops.WithHeads(c.KVHeads)), c.RoPEBase)
		v[i] = b.linear(x, l.param("wv_"+name+".weight"), ops.WithHeads(c.KVHeads))
	}

	kc, vc := l.compress(&b, "phi_k.", k[0]), l.compress(&b, "phi_v.", v[0]) // [B,Nc,Hkv,D], [B,Nc,Hkv,Dv]
	compressed := b.do(func() (*G.Node, error) { return ops.CompressedAttention(q, kc, vc, c.BlockLen, c.Stride) })
	lse := b.do(func() (*G.Node, error) { return ops.LSE(compressed) })
	idx := b.do(func() (*G.Node, error) { return ops.SelectBlocks(q, kc, lse, c.Params) }) // [B,S,Hkv,n]
	selected := b.do(func() (*G.Node, error) { return ops.SelectedAttention(q, k[1], v[1], idx, c.SelectBlock) })
	window := b.do(func() (*G.Node, error) { return ops.SlidingWindow(q, k[2], v[2], c.Window) })

	gates := l.gates(&b, x)
	o := b.do(func() (*G.Node, error) { return ops.GatedSum(gates, compressed, selected, window) }) // [B,S,Hq,Dv]
	return b.linear(o, l.param("wo.weight")), b.err
}

// compress applies the layer's phi to x [B,S,Hkv,D].
func (l *NSA) compress(b *builder, side string, x *G.Node) *G.Node {
	c := l.config
	return b.do(func() (*G.Node, error) {
		if c.Phi == PhiMLP {
			return ops.CompressMLP(x, l.param(side+"pe"), l.param(side+"w1.weight"), l.param(side+"w2.weight"), c.BlockLen, c.Stride)
		}
		return ops.CompressMean(x, c.BlockLen, c.Stride)
	})
}

// gates returns the gates [B,S,Hq,3] of the layer's input, in the order of branches.
func (l *NSA) gates(b *builder, x *G.Node) *G.Node {
	hidden := b.linear(x, l.param("gate.w1.weight"), ops.WithBias(l.param("gate.w1.bias")))
	hidden = b.do(func() (*G.Node, error) { return ops.SiLU(hidden) })
	out := b.linear(hidden, l.param("gate.w2.weight"), ops.WithBias(l.param("gate.w2.bias")), ops.WithHeads(l.config.Heads))
	return b.do(func() (*G.Node, error) {
		if l.config.GateActivation == GateSoftmax {
			return ops.Softmax(out)
		}
		return ops.Sigmoid(out)
	})
}

func (l *NSA) param(name string) *G.Node { return l.params[l.prefix+name] }

// builder runs constructors until one fails and keeps the first error; later ones return nil.
type builder struct{ err error }

func (b *builder) do(f func() (*G.Node, error)) *G.Node {
	if b.err != nil {
		return nil
	}
	var n *G.Node
	n, b.err = f()
	return n
}

func (b *builder) linear(x, w *G.Node, opts ...ops.LinearOption) *G.Node {
	return b.do(func() (*G.Node, error) { return ops.Linear(x, w, opts...) })
}

func (b *builder) rope(x *G.Node, base float64) *G.Node {
	return b.do(func() (*G.Node, error) { return ops.RoPE(x, base, 0) })
}
