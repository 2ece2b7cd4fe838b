package tinylm

import (
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// canExtend reports whether b has an implementation of decode.Extend for a cache. If it has none, a Decoder prefills
// whole prompts.
func canExtend(b graph.Backend, c decode.KVCache) bool {
	call := graph.Call{Spec: decode.Extend{Cache: c, Tokens: 1}}
	add := func(dt tensor.Dtype, shape ...int) { call.In = append(call.In, spec.Operand{Dtype: dt, Shape: shape}) }
	for _, k := range (decode.Step{Cache: c}).Inputs().K {
		if k >= 0 {
			add(tensor.Float32, 1, 1, c.KVHeads, c.KeyDim)
			add(tensor.Float32, 1, 1, c.KVHeads, c.ValueDim)
		}
	}
	add(tensor.Float32, c.Elements())
	add(tensor.Int32, 1, 3) // page table
	add(tensor.Int32, 1)    // start
	var err error
	call.Out, err = call.Spec.Infer(call.In)
	if spec.IsHalf(c.Half) { // as keys and values are then
		for _, list := range [][]spec.Operand{call.In[:len(call.In)-3], call.Out} {
			for i := range list {
				list[i].Dtype = c.Half
			}
		}
	}
	return err == nil && slices.ContainsFunc(b.Offers(call), func(i graph.Implementation) bool { return i.Guard(call) == nil })
}

// prefillShape tells the graphs of prefills apart.
type prefillShape struct {
	tokens  int
	extends bool // a sequence that has tokens
}

// Prefill replaces the sequence of a slot by tokens and computes the logits of the token that follows. The tokens run in
// chunks, see PrefillChunk, those of a chunk at once in a graph for the next power of two, or for a chunk or the context
// if that is less. A graph is made when it is first needed. If a run fails, the slot is free; after any other error it
// keeps its sequence.
func (d *Decoder) Prefill(slot int, tokens []int32) (err error) {
	defer fault.Name(&err, "tinylm", fmt.Sprintf("prefill of %d tokens", len(tokens)))
	if d.step != nil && (slot < 0 || slot >= d.slots) {
		return fmt.Errorf("slot %d, want 0 to %d", slot, d.slots-1)
	}
	if err := d.checkPrompt(tokens); err != nil {
		return err
	}
	if len(tokens) == 0 {
		return errors.New("no tokens")
	}
	shared := 0
	if d.prefix.begins(tokens) {
		shared = len(d.prefix.tokens)
	}
	// A graph that cannot be made is an error before the slot changes.
	for at := 0; at < len(tokens); {
		end := len(tokens)
		if at < shared {
			end = shared
		}
		n := min(d.chunk, end-at)
		if _, err := d.prefillGraph(n, at > 0); err != nil {
			return err
		}
		at += n
	}
	d.Release(slot)
	if shared > 0 {
		err = d.prefillShared(slot)
	}
	if err == nil {
		err = d.extend(slot, tokens[shared:])
	}
	if err != nil {
		d.Release(slot)
	}
	return err
}

// checkPrompt returns an error if the decoder is closed or cannot hold the tokens.
func (d *Decoder) checkPrompt(tokens []int32) error {
	switch {
	case d.step == nil:
		return errDecoderClosed
	case d.failed != nil:
		return d.failed
	case len(tokens) > d.context:
		return fmt.Errorf("%w: it holds %d", ErrContextFull, d.context)
	}
	vocab := d.vocab()
	if i := slices.IndexFunc(tokens, func(t int32) bool { return t < 0 || int(t) >= vocab }); i >= 0 {
		return fmt.Errorf("token %d is %d, want 0 to %d", i, tokens[i], vocab-1)
	}
	return nil
}

// extend appends tokens to the sequence of a slot and computes the logits of the token that follows.
func (d *Decoder) extend(slot int, tokens []int32) error {
	s := &d.sequences[slot]
	for len(tokens) > 0 {
		n, start := min(d.chunk, len(tokens)), s.tokens
		g, err := d.prefillGraph(n, start > 0)
		if err != nil {
			return err
		}
		s.tokens += n
		d.grow(s, s.tokens)
		clear(g.tokens[copy(g.tokens, tokens[:n]):])
		g.last[0], g.pages[0], g.pages[1] = int32(n-1), int32(slot), int32(n)
		copy(g.pages[2:], s.pages)
		if g.start != nil {
			g.start[0] = int32(start)
		}
		if err := d.run(g); err != nil {
			return err
		}
		if tokens = tokens[n:]; len(tokens) == 0 {
			return g.copyLogits(func(int) []float32 { return s.logits })
		}
	}
	return nil
}

// prefillGraph returns the graph for n tokens or more, of a new sequence or of one that has tokens.
func (d *Decoder) prefillGraph(n int, extends bool) (*decoderGraph, error) {
	const minPrefill = 16
	size := minPrefill
	for size < n {
		size *= 2
	}
	shape := prefillShape{min(d.chunk, size), extends}
	if g := d.prefills[shape]; g != nil {
		return g, nil
	}
	c := d.weights.Config.WithDefaults()
	g, err := d.newGraph(1, shape.tokens, 2+cap(d.sequences[0].pages), func(g *decoderGraph, b *nn.Builder, tokens *G.Node,
		caches []nn.Cache) *G.Node {
		var last *G.Node
		g.last, last = newInput(g.graph, "last", 1, 1)
		var run nn.Run
		if extends {
			run.Tokens = d.context - 1 + shape.tokens // the last token, and what follows it in its chunk
			g.start, run.Start = newInput(g.graph, "start", 1)
		}
		return c.addPrefill(b, tokens, last, run, caches)
	})
	if err == nil {
		d.prefills[shape] = g
	}
	return g, err
}
