package tinylm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// Decoder runs a model one token at a time over caches of keys and values. It runs several sequences of different
// lengths at once, each in its slot. The logits of a sequence are those that a Model computes for the whole sequence;
// they do not depend on other slots. A Decoder shares the weights with the models: after a training step, a sequence
// that has begun continues with the new weights. Only one goroutine may use it at a time.
type Decoder struct {
	weights        *Weights
	slots, context int
	options        []graph.Option
	caches         []G.Value       // one for each layer
	resident       *graph.Resident // holds the caches on a device; nil on the host
	cacheSizes     decode.KVCache  // of each cache
	sequences      []slotSequence
	free           []int32 // pages that no sequence uses

	step     *decoderGraph
	prefills map[int]*decoderGraph // by length
}

// slotSequence is the sequence of a slot.
type slotSequence struct {
	tokens int
	pages  []int32
	logits []float32
}

var errDecoderClosed = errors.New("the decoder is closed")

// ErrContextFull says that a sequence has no room for another token.
var ErrContextFull = errors.New("the context is full")

// pageTokens is the length of a page of the caches, in tokens; a shorter context has one page of its own length. The
// compressed keys of a page should fill vectors.
const pageTokens = 512

// DecoderOption is an option of NewDecoder, made by DecodeOn.
type DecoderOption struct {
	backend   graph.Backend
	precision graph.Precision
}

// DecodeOn makes a decoder run on b, with activations and caches in precision p; on the CPU caches are in float32. If b
// has memory of its own, the weights must be there already: see Weights.MoveTo. Weights on a device can be decoded only
// there.
func DecodeOn(b graph.Backend, p graph.Precision) DecoderOption { return DecoderOption{b, p} }

// NewDecoder returns a decoder for up to slots sequences of up to context tokens each; context may differ from
// Config.Context. Without DecodeOn it runs on the CPU in the type of the weights. Close ends it.
func NewDecoder(w *Weights, slots, context int, opts ...DecoderOption) (d *Decoder, err error) {
	defer fault.Name(&err, "tinylm", fmt.Sprintf("decoder of %d sequences of %d tokens", slots, context))
	o := DecoderOption{backend: graph.NewCPU(0)}
	if n := len(opts); n > 0 {
		o = opts[n-1]
	}
	if err := w.check(); err != nil {
		return nil, err
	}
	if err := checkTokens(slots, context); err != nil {
		return nil, err
	}
	c := w.Config.WithDefaults()
	if value.IsNil(o.backend) {
		return nil, errors.New("the backend is nil")
	}
	if err := w.checkOn(o.backend); err != nil {
		return nil, err
	}
	d = &Decoder{weights: w, slots: slots, context: context, sequences: make([]slotSequence, slots),
		prefills: map[int]*decoderGraph{}}
	d.options = []graph.Option{graph.WithBackend(o.backend), graph.WithPrecision(o.precision), graph.WithCapture()}
	cached := o.precision
	if o.backend.Device().Host {
		cached = graph.F32 // its attention reads caches in float32
	}
	if d.cacheSizes, err = c.cacheSizes(slots, context, cached); err != nil {
		return nil, err
	}
	if err := d.newCaches(o.backend); err != nil {
		return nil, fmt.Errorf("caches: %w", err)
	}
	pages := d.cacheSizes.Pages / slots
	for i := range d.sequences {
		d.sequences[i].pages = make([]int32, 0, pages)
		d.sequences[i].logits = make([]float32, c.Vocab)
	}
	for p := range d.cacheSizes.Pages {
		d.free = append(d.free, int32(d.cacheSizes.Pages-1-p))
	}
	d.step, err = d.newGraph(slots, 1, 1+pages, func(_ *decoderGraph, b *nn.Builder, tokens *G.Node,
		caches []nn.Cache) *G.Node {
		return c.addDecode(b, tokens, caches)
	})
	if err != nil {
		err = errors.Join(err, d.Close())
		return nil, err
	}
	return d, nil
}

// cacheSizes returns the sizes of a layer's cache, with pages for slots sequences of context tokens each. c has its
// defaults.
func (c Config) cacheSizes(slots, context int, p graph.Precision) (decode.KVCache, error) {
	pageLen := min(context, pageTokens)
	if c.Attention != Dense {
		// A block of so many tokens is never full. A longer one would only need more room.
		longest := (max(context, pageTokens)/c.Stride + 1) * c.Stride
		c.SelectBlock = min(c.SelectBlock, longest)
		if c.Phi == nn.PhiMean { // l is a size of the weights of PhiMLP
			c.BlockLen = min(c.BlockLen, longest)
		}
		pageLen = (pageLen + c.SelectBlock - 1) / c.SelectBlock * c.SelectBlock
	}
	pages := (context + pageLen - 1) / pageLen
	sizes := c.denseConfig().Cache(slots, slots*pages, pageLen)
	if c.Attention != Dense { // a longer window would never be full
		sizes = c.NSAConfig.Cache(slots, slots*pages, pageLen)
		sizes.Window = min(sizes.Window, context)
	}
	switch p {
	case graph.BF16:
		sizes.Half = ops.BFloat16
	case graph.FP16:
		sizes.Half = ops.Float16
	}
	return sizes, sizes.Validate()
}

// CacheBytes returns the bytes of the caches of a Decoder for these sizes, in float32.
func (c Config) CacheBytes(slots, context int) (_ int, err error) {
	defer fault.Name(&err, "tinylm", fmt.Sprintf("caches of %d sequences of %d tokens", slots, context))
	if err := cmp.Or(c.check(), checkTokens(slots, context)); err != nil {
		return 0, err
	}
	sizes, err := c.WithDefaults().cacheSizes(slots, context, graph.F32)
	if err != nil {
		return 0, err
	}
	return 4 * c.Layers * sizes.Elements(), nil
}

// newCaches allocates a cache for each layer, in the memory of b.
func (d *Decoder) newCaches(b graph.Backend) (err error) {
	layers, dt := d.weights.Config.Layers, d.weights.Tensors["norm.weight"].Dtype()
	if err := memory.CheckTotal(layers * d.cacheSizes.Elements() * int(dt.Size())); err != nil {
		return err
	}
	for range layers {
		d.caches = append(d.caches, tensor.New(tensor.Of(dt), tensor.WithShape(d.cacheSizes.Elements())))
	}
	if b.Device().Host {
		return nil
	}
	if d.resident, err = graph.NewResident(b, d.caches); err != nil {
		return err
	}
	d.caches = d.resident.Values()
	return nil
}

// Slots returns the number of sequences that the decoder has room for.
func (d *Decoder) Slots() int { return d.slots }

// Context returns the largest number of tokens of a sequence.
func (d *Decoder) Context() int { return d.context }

// Len returns the number of tokens of the sequence in a slot, 0 for a free slot. Len, Logits and Release panic if the
// slot is outside [0, Slots()), as an index does.
func (d *Decoder) Len(slot int) int { return d.sequences[slot].tokens }

// Logits returns the logits [V] of the token that follows the sequence in a slot. They last until its next Prefill,
// Step or Release.
func (d *Decoder) Logits(slot int) []float32 { return d.sequences[slot].logits }

// Release frees a slot.
func (d *Decoder) Release(slot int) {
	s := &d.sequences[slot]
	d.free = append(d.free, s.pages...)
	s.tokens, s.pages = 0, s.pages[:0]
}

// Prefill replaces the sequence of a slot by tokens and computes the logits of the token that follows. All tokens run
// at once, in a graph for the next power of two, or for the context if that is less. A graph is made when it is first
// needed. If the run fails, the slot is free; after any other error it keeps its sequence.
func (d *Decoder) Prefill(slot int, tokens []int32) (err error) {
	defer fault.Name(&err, "tinylm", fmt.Sprintf("prefill of %d tokens", len(tokens)))
	switch {
	case d.step == nil:
		return errDecoderClosed
	case slot < 0 || slot >= d.slots:
		return fmt.Errorf("slot %d, want 0 to %d", slot, d.slots-1)
	case len(tokens) == 0:
		return errors.New("no tokens")
	case len(tokens) > d.context:
		return fmt.Errorf("%w: it holds %d", ErrContextFull, d.context)
	}
	vocab := len(d.sequences[slot].logits)
	if i := slices.IndexFunc(tokens, func(t int32) bool { return t < 0 || int(t) >= vocab }); i >= 0 {
		return fmt.Errorf("token %d is %d, want 0 to %d", i, tokens[i], vocab-1)
	}
	g, err := d.prefillGraph(len(tokens))
	if err != nil {
		return err
	}
	d.Release(slot)
	s := &d.sequences[slot]
	d.grow(s, len(tokens))
	clear(g.tokens[copy(g.tokens, tokens):])
	g.last[0], g.pages[0], g.pages[1] = int32(len(tokens)-1), int32(slot), int32(len(tokens))
	copy(g.pages[2:], s.pages)
	if err = d.run(g); err == nil {
		err = g.copyLogits(func(int) []float32 { return s.logits })
	}
	if err != nil {
		d.Release(slot)
		return err
	}
	s.tokens = len(tokens)
	return nil
}

// prefillGraph returns the graph for n tokens or more.
func (d *Decoder) prefillGraph(n int) (*decoderGraph, error) {
	const minPrefill = 16
	size := minPrefill
	for size < n {
		size *= 2
	}
	n = min(d.context, size)
	if g := d.prefills[n]; g != nil {
		return g, nil
	}
	c := d.weights.Config.WithDefaults()
	g, err := d.newGraph(1, n, 2+cap(d.sequences[0].pages), func(g *decoderGraph, b *nn.Builder, tokens *G.Node,
		caches []nn.Cache) *G.Node {
		var last *G.Node
		g.last, last = newInput(g.graph, "last", 1, 1)
		return c.addPrefill(b, tokens, last, caches)
	})
	if err == nil {
		d.prefills[n] = g
	}
	return g, err
}

// grow adds pages to s until it has room for n tokens.
func (d *Decoder) grow(s *slotSequence, n int) {
	for len(s.pages)*d.cacheSizes.PageLen < n {
		last := len(d.free) - 1
		s.pages, d.free = append(s.pages, d.free[last]), d.free[:last]
	}
}

// Step appends tokens[slot] to the sequence of each slot and computes the logits of the token that follows. It skips
// slots whose token is negative. A free slot is an error. If a sequence is full, the error wraps ErrContextFull. If the
// run fails, no sequence has changed.
func (d *Decoder) Step(tokens []int32) (err error) {
	defer fault.Name(&err, "tinylm", "decode")
	switch {
	case d.step == nil:
		return errDecoderClosed
	case len(tokens) != d.slots:
		return fmt.Errorf("%d tokens, want one for each of %d slots", len(tokens), d.slots)
	}
	for i, t := range tokens {
		switch s := &d.sequences[i]; {
		case t < 0:
		case s.tokens == 0:
			return fmt.Errorf("slot %d is free: Prefill begins a sequence", i)
		case s.tokens >= d.context:
			return fmt.Errorf("slot %d: %w: it holds %d", i, ErrContextFull, d.context)
		}
	}
	g := d.step
	width := len(g.pages) / d.slots
	for i, t := range tokens {
		s, row := &d.sequences[i], g.pages[i*width:][:width]
		if row[0], g.tokens[i] = -1, 0; t >= 0 {
			d.grow(s, s.tokens+1)
			row[0], g.tokens[i] = int32(s.tokens), t
			copy(row[1:], s.pages)
		}
	}
	if err := d.run(g); err != nil {
		return err
	}
	err = g.copyLogits(func(i int) []float32 {
		if tokens[i] < 0 {
			return nil
		}
		return d.sequences[i].logits
	})
	if err != nil {
		return err
	}
	for i, t := range tokens {
		if t >= 0 {
			d.sequences[i].tokens++
		}
	}
	return nil
}

// run runs a graph, after waiting for another machine that uses the weights.
func (d *Decoder) run(g *decoderGraph) error {
	if d.resident != nil {
		if err := d.weights.use(g.machine); err != nil {
			return err
		}
		if g.version != d.weights.version {
			g.machine.Refresh()
			g.version = d.weights.version
		}
	}
	return g.machine.RunAll()
}

// Plan returns the plan of a Step. After Close it is empty.
func (d *Decoder) Plan() graph.Plan {
	if d.step == nil {
		return graph.Plan{}
	}
	return d.step.machine.Plan()
}

// Close ends the machines.
func (d *Decoder) Close() error {
	var errs []error
	for _, g := range d.prefills {
		errs = append(errs, g.machine.Close())
	}
	if d.step != nil {
		errs = append(errs, d.step.machine.Close())
	}
	if d.resident != nil {
		errs = append(errs, d.resident.Close())
		d.resident = nil
	}
	d.prefills, d.step = nil, nil
	return errors.Join(errs...)
}
