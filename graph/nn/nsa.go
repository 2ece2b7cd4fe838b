package nn

import (
	"cmp"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// Phi says how the keys and values of a block are compressed into one.
type Phi string

// The kinds of Phi.
const (
	PhiMean Phi = "mean" // the mean of the block
	// an MLP over the block, with a position embedding inside the block; keys and values have an MLP each
	PhiMLP Phi = "mlp"
)

// GateActivation is the last function of the MLP that computes the gates.
type GateActivation string

// The kinds of GateActivation.
const (
	GateSigmoid GateActivation = "sigmoid" // each gate is in (0, 1)
	GateSoftmax GateActivation = "softmax" // the gates of a head sum to 1
)

// NSAConfig holds the sizes of an NSA layer. A field is required unless its comment says what zero means.
type NSAConfig struct {
	Dim      int // width of the layer's input and output
	Heads    int // query heads, a multiple of KVHeads
	KVHeads  int // key/value heads: the groups that share a selection
	KeyDim   int // width of a query and a key; even, because the rotary embedding rotates pairs
	ValueDim int // width of a value

	ops.Params

	Phi            Phi            // "" is PhiMean
	PhiHidden      int            // hidden width of the compression's MLP; PhiMean ignores it
	GateHidden     int            // hidden width of the gates' MLP
	GateActivation GateActivation // "" is GateSigmoid
	RoPEBase       float64        // base of the rotary embedding's wavelengths; 0 is 10000
	// of the rotary embedding; the zero value scales nothing
	RoPEScaling ops.RoPEScaling `json:",omitzero"`

	Projections

	// Without leaves out branches with their projections and gates, but not all of them, and not the compressed one where
	// the selected one selects by its keys. The rest stays the same. The window branch alone is gated sliding window
	// attention. All of Params must be valid, also where they change no result.
	Without decode.Branches `json:",omitempty"`
}

// DefaultRoPEBase is the base of the rotary embedding if NSAConfig.RoPEBase is 0.
const DefaultRoPEBase = 10000

// Bounds on sizes, so that no product of sizes overflows and no allocation panics.
const (
	maxSize     = 1 << 24 // each of the sizes
	maxElements = 1 << 40 // elements of a parameter
)

// branches returns the branches that the layer has, in the order of the gates.
func (c NSAConfig) branches() []decode.Branch {
	return slices.DeleteFunc([]decode.Branch{decode.Compressed, decode.Selected, decode.Window}, c.Without.Has)
}

// shortName returns the name of a branch in the names of parameters.
func shortName(b decode.Branch) string {
	return [...]string{decode.Compressed: "cmp", decode.Selected: "sel", decode.Window: "win"}[b]
}

// perBranch holds a node for each branch, nil for one that the layer does not have.
type perBranch [decode.NumBranches]*G.Node

// Validate returns an error that names a size that is wrong or does not fit another one.
func (c NSAConfig) Validate() (err error) {
	defer fault.Name(&err, "nn", "nsa")
	if err := cmp.Or(c.dense().check(), checkSize("GateHidden", "gate hidden", c.GateHidden),
		checkSize("SelectBlock", "selection block l'", c.SelectBlock), c.Params.Validate()); err != nil {
		return err
	}
	if c.Without >= 1<<decode.NumBranches-1 || c.Without.Has(decode.Compressed) && !c.Without.Has(decode.Selected) {
		return fault.Of("Without", "without", "is %03b, want not all branches, and the compressed one (001) only with the selected one (010)",
			c.Without)
	}
	switch c.Phi {
	case "", PhiMean:
		if c.PhiHidden < 0 {
			return fault.Of("PhiHidden", "phi hidden", "is %d, want at least 0", c.PhiHidden)
		}
	case PhiMLP:
		if c.PhiHidden < 1 || c.PhiHidden > maxSize || c.BlockLen > maxSize {
			return fault.Between("PhiHidden BlockLen", "phi hidden is %d and block length l %d, want 1 to %d with phi %q", c.PhiHidden, c.BlockLen, maxSize, c.Phi)
		}
	default:
		return fault.Of("Phi", "phi", "is %q, want %q or %q", c.Phi, PhiMean, PhiMLP)
	}
	if !slices.Contains([]GateActivation{"", GateSigmoid, GateSoftmax}, c.GateActivation) {
		return fault.Of("GateActivation", "gate activation", "is %q, want %q or %q", c.GateActivation, GateSigmoid,
			GateSoftmax)
	}
	return checkParams(c.LayerParams(""), "Dim Heads KVHeads KeyDim ValueDim BlockLen PhiHidden GateHidden")
}

// dense returns the sizes of a dense layer with the same heads.
func (c NSAConfig) dense() AttentionConfig {
	return AttentionConfig{c.Dim, c.Heads, c.KVHeads, c.KeyDim, c.ValueDim, c.RoPEBase, c.RoPEScaling,
		c.Projections}
}

func checkSize(name, label string, v int) error {
	if v < 1 || v > maxSize {
		return fault.Of(name, label, "is %d, want 1 to %d", v, maxSize)
	}
	return nil
}

// checkParams returns an error if a parameter is too large. fields are those that the sizes of the parameters come
// from.
func checkParams(list []Param, fields string) error {
	for _, p := range list {
		if rows, cols := p.Shape[0], p.Shape[len(p.Shape)-1]; rows < 1 || cols < 1 || rows > maxElements/cols {
			return fault.Between(fields, "parameter %s of shape %v is too large", p.Name, p.Shape)
		}
	}
	return nil
}

// linearParam is the weight [out,in] of a linear layer.
func linearParam(name string, out, in int) Param {
	return Param{name + ".weight", tensor.Shape{out, in}, LeCunNormal(in)}
}

// LayerParams returns the layer's parameters. Their names begin with prefix (such as "layers.0.attn."). Weights of
// linear layers are [out,in]. First values: projections and compression from LeCunNormal, position embeddings from
// Normal(0.02), the gates' weights from XavierUniform, the gates' biases zero.
func (c NSAConfig) LayerParams(prefix string) []Param {
	linear := func(name string, out, in int) Param { return linearParam(prefix+name, out, in) }
	gate := func(name string, out, in int) []Param {
		return []Param{
			{prefix + name + ".weight", tensor.Shape{out, in}, XavierUniform(in, out)},
			{prefix + name + ".bias", tensor.Shape{out}, nil},
		}
	}
	list := []Param{linear("wq", c.Heads*c.KeyDim, c.Dim)}
	for _, b := range c.branches() {
		list = append(list, linear("wk_"+shortName(b), c.KVHeads*c.KeyDim, c.Dim),
			linear("wv_"+shortName(b), c.KVHeads*c.ValueDim, c.Dim))
	}
	projections := list[:len(list):len(list)]
	if c.hasMLP() {
		for _, s := range []struct {
			name string
			dim  int
		}{{"phi_k.", c.KeyDim}, {"phi_v.", c.ValueDim}} {
			list = append(list, Param{prefix + s.name + "pe", tensor.Shape{c.BlockLen, s.dim}, Normal(0.02)},
				linear(s.name+"w1", c.PhiHidden, c.BlockLen*s.dim), linear(s.name+"w2", s.dim, c.PhiHidden))
		}
	}
	list = append(list, gate("gate.w1", c.GateHidden, c.Dim)...)
	list = append(list, gate("gate.w2", len(c.branches())*c.Heads, c.GateHidden)...)
	list = append(list, linear("wo", c.Dim, c.Heads*c.ValueDim))
	return append(list, c.Projections.params(prefix, c.KeyDim, c.Dim, projections)...)
}

// NSA is a layer of Native Sparse Attention: projections, rotary embedding, the compressed, the selected and the window
// branch, their gates and the output projection (arXiv 2502.11089, Section 3).
type NSA struct {
	config     NSAConfig
	prefix     string
	builder    Builder
	learnables G.Nodes
}

// NewNSA adds the parameters of a layer to g, with values from src. Their names begin with prefix. Layers of one graph
// need different prefixes, see Builder.Param.
func NewNSA(g *G.ExprGraph, prefix string, c NSAConfig, src Source) (*NSA, error) {
	b := NewBuilder(g, c.LayerParams(prefix), src)
	l := b.NSA(prefix, c)
	return l, b.err
}

// NSA adds the parameters of a layer to the graph. They must be among the parameters of b, see NSAConfig.LayerParams.
// After an error it returns nil; Apply of a nil layer returns an error.
func (b *Builder) NSA(prefix string, c NSAConfig) *NSA {
	if b.err == nil {
		b.err = c.Validate()
	}
	if c.RoPEBase == 0 {
		c.RoPEBase = DefaultRoPEBase
	}
	l := &NSA{config: c, prefix: prefix, learnables: b.layerParams(c.LayerParams(prefix))}
	if b.err != nil {
		return nil
	}
	l.builder = *b
	return l
}

// Learnables returns the nodes of the parameters in the order of LayerParams, for gorgonia.Grad and solvers. A nil
// layer, which Builder.NSA returns after an error, has none.
func (l *NSA) Learnables() G.Nodes {
	if l == nil {
		return nil
	}
	return l.learnables
}

// NSAParts holds the nodes of a layer's output and of the steps before it. After a run of a graph.Machine they have
// values if the machine was made with graph.WithKeep of them.
type NSAParts struct {
	Output *G.Node // [B,S,Dim]
	// [B,S,Hq,n], the weights of the branches that the layer has: of the compressed, the selected and the window branch
	Gates *G.Node
	// [B,S,Hq,Dv], the output of each branch before its gate; nil: not in the layer
	Compressed, Selected, Window *G.Node
	// int32 [B,S,Hkv,n], selected blocks of each query and group (0: its document's first), ascending, then -1; nil without
	// the selected branch
	Blocks *G.Node

	stored G.Nodes // what Fill stores
}

// Apply adds the layer to the graph of x [B,S,Dim] and returns its output [B,S,Dim]. Position 0 is the first token of a
// row or, in packed rows, of a document, or WithContext of a sequence.
func (l *NSA) Apply(x *G.Node, opts ...ApplyOption) (*G.Node, error) {
	p, err := l.ApplyParts(x, opts...)
	return p.Output, err
}

// ApplyParts is Apply, but returns the inner nodes, too.
func (l *NSA) ApplyParts(x *G.Node, opts ...ApplyOption) (p NSAParts, err error) {
	if l == nil {
		return p, errNilLayer
	}
	defer fault.Name(&err, "nn", "nsa "+l.prefix)
	c, b := l.config, l.builder // b is a copy, so that an error stays in this call
	seqs, err := b.layout(x, c.Dim, c.Params, opts)
	if err != nil {
		return p, err
	}
	var stored G.Nodes
	p = l.parts(&b, x, seqs.position, func(k, v perBranch) (perBranch, perBranch) {
		for _, branch := range c.branches() {
			k[branch], v[branch] = seqs.sequences(&b, k[branch]), seqs.sequences(&b, v[branch])
		}
		stored = c.interleaved(k, v)
		if kc, vc := &k[decode.Compressed], &v[decode.Compressed]; *kc != nil {
			// Every rank compresses whole sequences. Its own part alone would need the keys across the borders of its chunks and
			// another gather, to save what is little beside attention.
			*kc = l.compress(&b, "phi_k.", *kc, seqs.documents) // [B,Nc,Hkv,D]
			*vc = l.compress(&b, "phi_v.", *vc, seqs.documents) // [B,Nc,Hkv,Dv]
			stored = append(G.Nodes{*kc, *vc}, stored...)
		}
		for _, branch := range c.branches() {
			k[branch], v[branch] = seqs.perRow(&b, k[branch]), seqs.perRow(&b, v[branch])
		}
		return k, v
	})
	if b.err != nil {
		return NSAParts{}, b.err
	}
	p.stored = stored
	return p, nil
}

// parts adds the layer to the graph of x. position is the option of ops for documents or a start. context gets the keys
// and values of the tokens of x, rotated, and returns those that they attend to: compressed ones in the compressed
// branch.
func (l *NSA) parts(b *Builder, x *G.Node, position ops.Option,
	context func(k, v perBranch) (perBranch, perBranch)) (p NSAParts) {
	c := l.config
	q, k, v := l.project(b, x)
	rope := func(x *G.Node) *G.Node { return b.Node(ops.ScaledRoPE(x, c.RoPEBase, c.RoPEScaling, 0, position)) }
	q = rope(q)
	for _, branch := range c.branches() {
		k[branch] = rope(k[branch])
	}
	if k, v = context(k, v); b.err != nil {
		return p
	}
	kc := k[decode.Compressed]
	if kc != nil {
		p.Compressed = b.Node(ops.CompressedAttention(q, kc, v[decode.Compressed], c.Params, position))
	}
	if ks := k[decode.Selected]; ks != nil {
		lse := b.Node(ops.LSE(p.Compressed)) // [B,Hq,S]
		p.Blocks = b.Node(ops.SelectBlocks(q, kc, lse, c.Params, position))
		p.Selected = b.Node(ops.SelectedAttention(q, ks, v[decode.Selected], p.Blocks, c.SelectBlock, position))
	}
	if kw := k[decode.Window]; kw != nil {
		p.Window = b.Node(ops.SlidingWindow(q, kw, v[decode.Window], c.Window, position))
	}

	p.Gates = l.gates(b, x)
	outputs := slices.DeleteFunc(G.Nodes{p.Compressed, p.Selected, p.Window}, func(n *G.Node) bool { return n == nil })
	sum := b.Node(ops.GatedSum(p.Gates, outputs...)) // [B,S,Hq,Dv]
	p.Output = b.Linear(sum, l.prefix+"wo")
	return p
}

// project returns the projections of x [B,S,Dim], normed but not yet rotated: q [B,S,Hq,D], and k [B,S,Hkv,D] and v [B,S,Hkv,Dv]
// of each branch.
func (l *NSA) project(b *Builder, x *G.Node) (q *G.Node, k, v perBranch) {
	heads := func(name string, n int) *G.Node { return b.Linear(x, l.prefix+name, ops.WithHeads(n)) }
	q = l.config.norm(b, heads("wq", l.config.Heads), l.prefix+"q_norm")
	for _, branch := range l.config.branches() {
		k[branch] = l.config.norm(b, heads("wk_"+shortName(branch), l.config.KVHeads), l.prefix+"k_norm")
		v[branch] = heads("wv_"+shortName(branch), l.config.KVHeads)
	}
	return q, k, v
}

// interleaved returns the keys and values of the branches: key, value, key, value, and so on.
func (c NSAConfig) interleaved(k, v perBranch) (list G.Nodes) {
	for _, branch := range c.branches() {
		list = append(list, k[branch], v[branch])
	}
	return list
}

// gates returns the activated gates of x, one for each branch of the layer: [B,S,Hq,n].
func (l *NSA) gates(b *Builder, x *G.Node) *G.Node {
	logits := b.Linear(b.Node(ops.SiLU(b.Linear(x, l.prefix+"gate.w1"))), l.prefix+"gate.w2",
		ops.WithHeads(l.config.Heads))
	if l.config.GateActivation == GateSoftmax {
		return b.Node(ops.Softmax(logits))
	}
	return b.Node(ops.Sigmoid(logits))
}

// phiParams returns the parameters of the compression's MLP for one side: the keys, "phi_k.", or the values, "phi_v.".
func (l *NSA) phiParams(b *Builder, side string) (pe, w1, w2 *G.Node) {
	param := func(name string) *G.Node { return b.Param(l.prefix + side + name) }
	return param("pe"), param("w1.weight"), param("w2.weight")
}

// phiInputs returns the parameters of the compression's MLP in the order of the inputs of decode.Step, none if the
// layer has no MLP.
func (l *NSA) phiInputs(b *Builder) (list G.Nodes) {
	if !l.config.hasMLP() {
		return nil
	}
	for _, side := range []string{"phi_k.", "phi_v."} {
		pe, w1, w2 := l.phiParams(b, side)
		list = append(list, pe, w1, w2)
	}
	return list
}

// hasMLP reports whether the layer compresses by an MLP.
func (c NSAConfig) hasMLP() bool { return c.Phi == PhiMLP && !c.Without.Has(decode.Compressed) }

// compress applies the layer's phi to x [B,S,Hkv,D]. side is that of phiParams.
func (l *NSA) compress(b *Builder, side string, x *G.Node, documents ops.Option) *G.Node {
	c := l.config
	if c.Phi == PhiMLP {
		pe, w1, w2 := l.phiParams(b, side)
		return b.Node(ops.CompressMLP(x, pe, w1, w2, c.Params, documents))
	}
	return b.Node(ops.CompressMean(x, c.Params, documents))
}
