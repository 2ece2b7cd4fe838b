package tinylm

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// Decoder runs a model one token at a time over caches of keys and values. It runs several sequences of different
// lengths at once, each in its slot. The logits of a sequence are those that a Model computes for the whole sequence;
// they do not depend on other slots. A Decoder shares the weights with the models: after a training step, a sequence
// that has begun continues with the new weights. Only one goroutine may use it at a time.
type Decoder struct {
	weights        *Weights
	slots, context int
	backend        graph.Backend
	onDevice       bool // the backend has memory of its own
	options        []graph.Option
	caches         []G.Value        // one for each layer
	cacheSizes     []decode.KVCache // of each cache; all have the same pages
	memory         graph.Memory     // of the caches
	cacheAt        []int            // the offset of each cache in memory
	stream         graph.Stream     // copies parts of the caches
	sequences      []slotSequence
	free           []int32 // pages that no sequence uses
	references     []int32 // for each page, of sequences and of the prefix
	prefix         sharedPrefix
	copied         graph.Memory // for the copy of the prefix; nil before the first one
	logits         []float32    // [slots,V], those of the sequences
	lost           error        // why the logits of the last Step are not on the device any more
	failed         error        // of Logits

	step     *decoderGraph
	extends  bool // whether the backend can prefill tokens after others
	chunk    int  // tokens of a chunk of a prompt
	prefills map[prefillShape]*decoderGraph
}

// slotSequence is the sequence of a slot.
type slotSequence struct {
	tokens   int
	pages    []int32
	logits   []float32
	onDevice bool // the logits are those of the last Step and still on the device
}

var errDecoderClosed = errors.New("the decoder is closed")

// ErrContextFull says that a sequence has no room for another token.
var ErrContextFull = errors.New("the context is full")

// pageTokens is the length of a page of the caches, in tokens; a shorter context has one page of its own length. The
// compressed keys of a page should fill vectors.
const pageTokens = 512

// DecoderOption is an option of NewDecoder.
type DecoderOption func(*decoderOptions)

type decoderOptions struct {
	backend   graph.Backend
	precision graph.Precision
	chunk     int
}

// DecodeOn makes a decoder run on b, with activations and caches in precision p; on the CPU caches are in float32. If b
// has memory of its own, the weights must be there already: see Weights.MoveTo. Weights on a device can be decoded only
// there.
func DecodeOn(b graph.Backend, p graph.Precision) DecoderOption {
	return func(o *decoderOptions) { o.backend, o.precision = b, p }
}

// DefaultPrefillChunk is the number of tokens of a chunk without PrefillChunk on the CPU, and
// DefaultPrefillChunkOnDevice elsewhere: there a chunk has to fill the device.
const (
	DefaultPrefillChunk         = 2048
	DefaultPrefillChunkOnDevice = 32768
)

// PrefillChunk makes a decoder prefill prompts in chunks of n tokens; 0 means DefaultPrefillChunk on the CPU and
// DefaultPrefillChunkOnDevice elsewhere. The activations are those of a chunk: with a longer prompt only the buffers of
// keys and values grow, which all layers share and which have the size of the context. The results do not depend on n,
// on the CPU in no bit. A backend without an implementation of decode.Extend prefills whole prompts, and n has to be 0.
func PrefillChunk(n int) DecoderOption { return func(o *decoderOptions) { o.chunk = n } }

// NewDecoder returns a decoder for up to slots sequences of up to context tokens each; context may differ from
// Config.Context. Without DecodeOn it runs on the CPU in the type of the weights. Close ends it.
func NewDecoder(w *Weights, slots, context int, opts ...DecoderOption) (d *Decoder, err error) {
	defer fault.Name(&err, "tinylm", fmt.Sprintf("decoder of %d sequences of %d tokens", slots, context))
	o := decoderOptions{backend: graph.NewCPU(0)}
	for _, opt := range opts {
		if opt == nil {
			return nil, errors.New("nil option")
		}
		opt(&o)
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
	d = &Decoder{weights: w, slots: slots, context: context, backend: o.backend,
		onDevice: !o.backend.Device().Host, sequences: make([]slotSequence, slots),
		prefills: map[prefillShape]*decoderGraph{}}
	d.options = []graph.Option{graph.WithBackend(o.backend), graph.WithPrecision(o.precision), graph.WithCapture()}
	cached := o.precision
	if !d.onDevice {
		cached = graph.F32 // its attention reads caches in float32
	}
	if d.cacheSizes, err = c.cacheSizes(slots, context, cached); err != nil {
		return nil, err
	}
	cannot := func(c decode.KVCache) bool { return !canExtend(o.backend, c) }
	d.extends = !slices.ContainsFunc(d.cacheSizes[:len(c.Attention.kinds())], cannot)
	usual := DefaultPrefillChunk
	if d.onDevice {
		usual = DefaultPrefillChunkOnDevice
	}
	switch d.chunk = min(context, cmp.Or(o.chunk, usual)); {
	case o.chunk < 0:
		return nil, fmt.Errorf("chunks of %d tokens, want at least 1, or 0 for %d", o.chunk, usual)
	case o.chunk > 0 && !d.extends:
		return nil, fmt.Errorf("prefill in chunks of %d tokens: %s has no kernel for it", o.chunk, o.backend.Device().Kind)
	case !d.extends:
		d.chunk = context // one chunk for any prompt
	}
	if err := d.newCaches(); err != nil {
		return nil, errors.Join(fmt.Errorf("caches: %w", err), d.Close())
	}
	allPages := d.cacheSizes[0].Pages
	pages := allPages / slots
	d.logits = make([]float32, slots*c.Vocab)
	for i := range d.sequences {
		d.sequences[i].pages = make([]int32, 0, pages)
		d.sequences[i].logits = d.logits[i*c.Vocab:][:c.Vocab:c.Vocab]
	}
	d.references = make([]int32, allPages)
	for p := range allPages {
		d.free = append(d.free, int32(allPages-1-p))
	}
	d.step, err = d.newGraph(slots, 1, 1+pages, func(g *decoderGraph, b *nn.Builder, tokens *G.Node,
		caches []nn.Cache) *G.Node {
		logits := c.addDecode(b, tokens, caches)
		if d.onDevice && logits != nil && logits.Dtype() == tensor.Float32 && slots*c.Vocab > fewLogits {
			g.top = newTopTokens(b, logits)
		}
		return logits
	})
	if err != nil {
		err = errors.Join(err, d.Close())
		return nil, err
	}
	return d, nil
}

// cacheSizes returns the sizes of the caches of the layers, with pages for slots sequences of context tokens each. c has
// its defaults.
func (c Config) cacheSizes(slots, context int, p graph.Precision) (list []decode.KVCache, err error) {
	// A block of so many tokens is never full. A longer one would only need more room.
	longest := (max(context, pageTokens)/max(1, c.Stride) + 1) * c.Stride
	pageLen := min(context, pageTokens)
	if !slices.Equal(slices.Compact(c.Attention.kinds()), []Attention{Dense}) {
		c.SelectBlock = min(c.SelectBlock, longest)
		if c.Phi == nn.PhiMean { // l is a size of the weights of PhiMLP
			c.BlockLen = min(c.BlockLen, longest)
		}
		c.Window = min(c.Window, context) // a longer one would never be full
		pageLen = (pageLen + c.SelectBlock - 1) / c.SelectBlock * c.SelectBlock
	}
	pages := slots * ((context + pageLen - 1) / pageLen)
	half := map[graph.Precision]tensor.Dtype{graph.BF16: ops.BFloat16, graph.FP16: ops.Float16}[p]
	for i := range c.Layers {
		sizes := c.nsaConfig(i).Cache(slots, pages, pageLen)
		if c.attentionOf(i) == Dense {
			sizes = c.denseConfig().Cache(slots, pages, pageLen)
		}
		sizes.Half = half
		if err := sizes.Validate(); err != nil {
			return nil, err
		}
		list = append(list, sizes)
	}
	return list, nil
}

// CacheBytes returns the bytes of the caches of a Decoder for these sizes, in float32.
func (c Config) CacheBytes(slots, context int) (bytes int, err error) {
	defer fault.Name(&err, "tinylm", fmt.Sprintf("caches of %d sequences of %d tokens", slots, context))
	if err := cmp.Or(c.check(), checkTokens(slots, context)); err != nil {
		return 0, err
	}
	list, err := c.WithDefaults().cacheSizes(slots, context, graph.F32)
	for _, sizes := range list {
		bytes += 4 * sizes.Elements()
	}
	return bytes, err
}

// newCaches allocates a cache for each layer, in the memory of the backend.
func (d *Decoder) newCaches() (err error) {
	var caches []spec.Arg
	bytes, align := 0, d.backend.Device().Alignment
	for _, sizes := range d.cacheSizes {
		cache := spec.Operand{Dtype: d.weights.dtype(), Shape: tensor.Shape{sizes.Elements()}}
		caches, d.cacheAt = append(caches, spec.Arg{Operand: cache, Buf: new(cpu.Buf)}), append(d.cacheAt, bytes)
		bytes += (cache.Bytes() + align - 1) / align * align
	}
	if d.memory, err = d.backend.Alloc(bytes); err != nil {
		return err
	}
	if d.stream, err = d.backend.NewStream(); err != nil {
		return err
	}
	for i, a := range caches {
		d.memory.Place(a.Buf, d.cacheAt[i], a.Operand.Bytes())
		d.caches = append(d.caches, d.stream.View(a))
	}
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
// Step or Release, and until Close. After a Step on a device the first call may wait for a copy of them. If that fails,
// the result is nil, and Prefill and Step return the error from then on.
func (d *Decoder) Logits(slot int) []float32 {
	if err := d.fetch(slot); err != nil {
		d.failed = cmp.Or(d.failed, err)
		return nil
	}
	return d.sequences[slot].logits
}

// fetch copies the logits of slots, in ascending order, to the host, unless they are there.
func (d *Decoder) fetch(slots ...int) error {
	vocab, waits := d.vocab(), false
	for i := 0; i < len(slots); i++ {
		first := slots[i]
		if !d.sequences[first].onDevice {
			continue
		}
		switch {
		case d.step == nil:
			return errDecoderClosed
		case d.lost != nil:
			return fmt.Errorf("slot %d: the logits are lost: %w", first, d.lost)
		}
		end := first + 1 // of adjoining rows
		for ; i+1 < len(slots) && slots[i+1] == end && d.sequences[end].onDevice; i++ {
			end++
		}
		rows := tensor.New(tensor.WithShape((end-first)*vocab), tensor.WithBacking(d.logits[first*vocab:end*vocab]))
		if err := d.step.machine.Fetch(rows, d.step.logits, first*vocab); err != nil {
			return err
		}
		waits = true
	}
	if !waits {
		return nil
	}
	if err := d.step.machine.Synchronize(); err != nil {
		return err
	}
	for _, i := range slots {
		d.sequences[i].onDevice = false
	}
	return nil
}

// vocab returns the number of logits of a token.
func (d *Decoder) vocab() int { return len(d.sequences[0].logits) }

// top returns the tokens with the largest logits of a slot, as vocab.TopK orders them, and these logits. They are nil
// unless a device has chosen them and fetch has not copied all logits.
func (d *Decoder) top(slot int) (ids []int32, logits []float32) {
	if d.step == nil || d.lost != nil || !d.sequences[slot].onDevice {
		return nil, nil
	}
	return d.step.top.of(slot)
}

// Release frees a slot.
func (d *Decoder) Release(slot int) {
	s := &d.sequences[slot]
	d.unreference(s.pages)
	s.tokens, s.pages, s.onDevice = 0, s.pages[:0], false
}

// grow adds pages to s until it has room for n tokens. If there are none, it takes those of the prefix: the sequences
// alone have never more than all.
func (d *Decoder) grow(s *slotSequence, n int) {
	for len(s.pages)*d.cacheSizes[0].PageLen < n {
		if len(d.free) == 0 {
			d.forgetPrefix()
		}
		last := len(d.free) - 1
		page := d.free[last]
		s.pages, d.free, d.references[page] = append(s.pages, page), d.free[:last], 1
	}
}

// unreference ends the use of pages by a sequence or by the prefix.
func (d *Decoder) unreference(pages []int32) {
	for _, p := range pages {
		if d.references[p]--; d.references[p] == 0 {
			d.free = append(d.free, p)
		}
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
	case d.failed != nil:
		return d.failed
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
	for i, t := range tokens { // the run overwrites the logits of all slots
		if t < 0 {
			if err := d.fetch(i); err != nil {
				return err
			}
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
	if err := d.runStep(tokens); err != nil {
		return err
	}
	for i, t := range tokens {
		if t >= 0 {
			d.sequences[i].tokens++
			d.sequences[i].onDevice = g.top != nil
		}
	}
	return nil
}

// runStep runs the graph of a step and brings to the host the logits of the slots whose token is not negative, or the
// largest of them.
func (d *Decoder) runStep(tokens []int32) error {
	err := d.run(d.step)
	switch {
	case err != nil:
	case d.step.top != nil:
		err = d.step.top.fetch(d.step.machine)
	default:
		return d.step.copyLogits(func(i int) []float32 {
			if tokens[i] < 0 {
				return nil
			}
			return d.sequences[i].logits
		})
	}
	if _, refused := errors.AsType[*spec.ValueError](err); !refused {
		d.lost = err
	}
	return err
}

// run runs a graph, after waiting for another machine that uses the weights.
func (d *Decoder) run(g *decoderGraph) error {
	if d.onDevice {
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

// PrefillPlans returns the plans of the graphs of prefills so far, by their numbers of tokens: see Prefill.
func (d *Decoder) PrefillPlans() (list []graph.Plan) {
	for _, shape := range slices.SortedFunc(maps.Keys(d.prefills), func(a, b prefillShape) int {
		return cmp.Or(a.tokens-b.tokens, len(d.prefills[a].start)-len(d.prefills[b].start))
	}) {
		list = append(list, d.prefills[shape].machine.Plan())
	}
	return list
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
	if d.stream != nil {
		errs = append(errs, d.stream.Close())
	}
	for _, m := range []graph.Memory{d.memory, d.copied} {
		if m != nil {
			errs = append(errs, m.Free())
		}
	}
	d.prefills, d.step, d.stream, d.memory, d.copied = nil, nil, nil, nil, nil
	return errors.Join(errs...)
}
