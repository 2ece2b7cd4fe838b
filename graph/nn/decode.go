package nn

import (
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// Cache is the key/value cache of one attention layer in a graph. Its sizes are those of NSAConfig.Cache. Window,
// SelectBlock and BlockLen may be smaller if no sequence is longer than they are: only the caller knows the longest
// one.
type Cache struct {
	decode.KVCache
	Values    *G.Node // [Elements()], an input: Decode and Fill write to it
	PageTable *G.Node // int32: the tokens and pages of the sequences, see decode.Step and decode.FillCache
}

var errNilLayer = errors.New("nn: nil layer")

// check returns an error if the sizes of c are not those of a layer's cache. What is longer than any sequence may be
// cut to that.
func (c Cache) check(want decode.KVCache) error {
	got := c.KVCache
	want.Half = got.Half
	want.BlockLen, want.SelectBlock, want.Window = min(want.BlockLen, got.BlockLen),
		min(want.SelectBlock, got.SelectBlock), min(want.Window, got.Window)
	if got == want {
		return nil
	}
	got.Half, want.Half = tensor.Float32, tensor.Float32 // the zero value of a type cannot be printed
	return fmt.Errorf("the cache is not of this layer: it has %+v, want %+v", got, want)
}

// Cache returns the sizes of a cache of the layer. slots is the number of sequences; they share pages of pageLen tokens
// each.
func (c NSAConfig) Cache(slots, pages, pageLen int) decode.KVCache {
	return decode.KVCache{
		Params: c.Params, KVHeads: c.KVHeads, KeyDim: c.KeyDim, ValueDim: c.ValueDim, Slots: slots, Pages: pages,
		PageLen: pageLen, Without: c.Without,
	}
}

// Decoded holds the nodes of a layer that decodes one token of each sequence.
type Decoded struct {
	Output *G.Node // [B,1,Dim]
	Blocks *G.Node // int32 [B,1,Hkv,n], the selected blocks, ascending, padded with -1, all -1 without the selected branch
}

// Decode adds the layer to the graph of x [B,1,Dim], one token for each slot of the cache. The output is that of
// Apply for the last token of the whole sequence.
func (l *NSA) Decode(x *G.Node, c Cache) (d Decoded, err error) {
	if l == nil {
		return d, errNilLayer
	}
	defer fault.Name(&err, "nn", "nsa "+l.prefix+": decode")
	if err := c.check(l.config.Cache(c.Slots, c.Pages, c.PageLen)); err != nil {
		return d, err
	}
	b := l.builder
	q, k, v := l.project(&b, x)
	inputs := append(G.Nodes{q}, l.config.interleaved(k, v)...)
	inputs = append(append(inputs, l.gates(&b, x)), l.phiInputs(&b)...)
	sum := b.Apply(decode.Step{Cache: c.KVCache, Base: l.config.RoPEBase, Scaling: l.config.RoPEScaling,
		MLP: l.config.hasMLP()},
		append(inputs, c.Values, c.PageTable)...)
	d.Blocks = b.Output(sum, 1)
	d.Output = b.Linear(sum, l.prefix+"wo")
	if b.err != nil {
		return Decoded{}, b.err
	}
	return d, nil
}

// Fill stores the keys and values of whole sequences in the cache. p is the result of ApplyParts for these sequences.
// Fill returns the numbers of tokens stored, int32 [R].
func (l *NSA) Fill(p NSAParts, c Cache) (stored *G.Node, err error) {
	if l == nil {
		return nil, errNilLayer
	}
	defer fault.Name(&err, "nn", "nsa "+l.prefix+": fill")
	if err := c.check(l.config.Cache(c.Slots, c.Pages, c.PageLen)); err != nil {
		return nil, err
	}
	if p.stored == nil {
		return nil, errors.New("the parts are not a result of ApplyParts")
	}
	return spec.Apply(decode.FillCache{Cache: c.KVCache}, append(slices.Clone(p.stored), c.Values, c.PageTable)...)
}

// Run is where the tokens of a layer's input are in sequences whose first tokens a cache has: row r of the input is the
// tokens Start[r], Start[r]+1, ... of its sequence.
type Run struct {
	Start *G.Node // int32 [R]: for each sequence the number of tokens in the cache, at most Tokens-S
	// T >= S: sequences have at most so many tokens, those at the end of the input included that are not stored. Buffers of
	// this size hold the keys and values of the sequences while the layer runs.
	Tokens int
}

// Extend adds the layer to the graph of x [R,S,Dim], tokens that follow those in the cache, and stores their keys and
// values, as many as the page table says: see decode.Extend. The results are those of ApplyParts for these tokens of
// whole sequences, on the CPU in the same bits.
func (l *NSA) Extend(x *G.Node, run Run, c Cache) (p NSAParts, err error) {
	if l == nil {
		return p, errNilLayer
	}
	defer fault.Name(&err, "nn", "nsa "+l.prefix+": extend")
	if err := c.check(l.config.Cache(c.Slots, c.Pages, c.PageLen)); err != nil {
		return p, err
	}
	b, cut := l.builder, *l
	cut.config.Params = c.Params // blocks longer than any sequence cost nothing then
	p = cut.parts(&b, x, ops.WithStart(run.Start), func(k, v perBranch) (perBranch, perBranch) {
		out := b.extend(c, run, append(l.config.interleaved(k, v), l.phiInputs(&b)...), len(l.config.branches()))
		for i, branch := range l.config.branches() {
			k[branch], v[branch] = out[2*i], out[2*i+1]
		}
		return k, v
	})
	if b.err != nil {
		return NSAParts{}, b.err
	}
	return p, nil
}

// extend returns the keys and values of whole sequences, for each branch a pair.
func (b *Builder) extend(c Cache, run Run, inputs G.Nodes, branches int) G.Nodes {
	first := b.Apply(decode.Extend{Cache: c.KVCache, Tokens: run.Tokens, MLP: len(inputs) > 2*branches},
		append(inputs, c.Values, c.PageTable, run.Start)...)
	out := G.Nodes{first}
	for i := 1; i < 2*branches; i++ {
		out = append(out, b.Output(first, i))
	}
	return out
}
