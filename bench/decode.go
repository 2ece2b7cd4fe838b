package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// decodeBranches are layers with only some branches. The selected branch selects its blocks by the keys of the
// compressed one.
var decodeBranches = []struct {
	name string
	ops.Params
	without decode.Branches
}{
	{"all", base.Params, 0},
	{"compressed", base.Params, decode.BranchesOf(decode.Selected, decode.Window)},
	{"block selection and selected", base.Params, decode.BranchesOf(decode.Compressed, decode.Window)},
	{"window", base.Params, decode.BranchesOf(decode.Compressed, decode.Selected)},
	{"dense attention", ops.Params{}, 0},
}

// maxCache bounds the memory of a measured cache, in bytes.
const maxCache = 4 << 30

// benchDecode times the attention of one layer for one more token after S tokens, for each branch and for batches of
// sequences. It checks the number of keys that the kernels have read. Then it times whole models. On a GPU the caches
// are in bf16.
func benchDecode(r *report) {
	shapes, batches, lengths := attentionShapes, []int{1, 8, 16, 64}, []int{512, 2048, 8192, 32768, 65536, 131072}
	host := r.backend.Device().Host
	if host {
		shapes, batches, lengths = attentionShapes[:1], []int{1, 8, 64}, []int{512, 2048, 8192, 32768, 131072}
	}
	for _, shape := range shapes {
		for _, s := range lengths {
			for _, batch := range batches {
				r.part(s, func() { r.addBranchesOfDecode(shape, batch, s) })
			}
		}
	}
	if host {
		addDecoders(r)
	} else {
		r.part(decodeContext, r.addDecodersOnGPU)
	}
}

const pageLen = 512

// addBranchesOfDecode measures each of decodeBranches with a cache for one more token after s tokens. Caches larger
// than maxCache are left out.
func (r *report) addBranchesOfDecode(shape attentionShape, batch, s int) {
	for _, b := range decodeBranches {
		c := decode.KVCache{Params: b.Params, Without: b.without, KVHeads: shape.kvHeads, KeyDim: shape.dim,
			ValueDim: shape.valueDim, Slots: batch, Pages: batch * (s/pageLen + 1), PageLen: pageLen}
		if !r.backend.Device().Host {
			c.Half = ops.BFloat16
		}
		if bytes := 4 * c.Elements(); bytes > maxCache {
			fmt.Printf("  %s, %s B=%d S=%d: a cache of %d MiB is left out\n", b.name, shape.name, batch, s, bytes>>20)
			continue
		}
		r.addDecode(b.name, shape, c, s)
	}
}

// decodeStep is the attention of layers for token s of all slots. Each layer has its own cache.
type decodeStep struct {
	graph   *G.ExprGraph
	inputs  G.Nodes // without the caches
	caches  G.Nodes
	counted G.Nodes // keys read, of each layer
	read    int     // keys that a group has to read
}

func newDecodeStep(shape attentionShape, c decode.KVCache, s, layers int) *decodeStep {
	g := G.NewGraph()
	d := &decodeStep{graph: g, inputs: G.Nodes{input(g, "q", c.Slots, 1, shape.heads, c.KeyDim)}}
	add := func(name string) {
		d.inputs = append(d.inputs, input(g, name+" k", c.Slots, 1, c.KVHeads, c.KeyDim),
			input(g, name+" v", c.Slots, 1, c.KVHeads, c.ValueDim))
	}
	if c.Dense() {
		add("dense")
		d.read = s + 1
	} else {
		selected := (c.TopN-1)*c.SelectBlock + s%c.SelectBlock + 1
		reads := []int{spec.NumVisible(s, c.BlockLen, c.Stride), min(s+1, selected), min(s+1, c.Window)}
		gates := 0
		for b, name := range decode.BranchNames() {
			if c.Stores(decode.Branch(b)) {
				add(name)
				d.read += reads[b]
			}
			if c.Has(decode.Branch(b)) {
				gates++
			}
		}
		d.inputs = append(d.inputs, input(g, "gates", c.Slots, 1, shape.heads, gates))
	}
	var table []int32 // of each slot: the number of tokens so far, and its pages
	perSlot := c.Pages / c.Slots
	for slot := range c.Slots {
		table = append(table, int32(s))
		for page := range perSlot {
			table = append(table, int32(slot*perSlot+page))
		}
	}
	pages := inputOf(g, "page table", table, c.Slots, 1+perSlot)
	for i := range layers {
		cache := inputOf(g, fmt.Sprint("cache ", i), cacheOf(c), c.Elements())
		d.caches = append(d.caches, cache)
		o := must(spec.Apply(decode.Step{Cache: c, Base: 10000}, append(slices.Clone(d.inputs), cache, pages)...))
		d.counted = append(d.counted, must(spec.Output(o, 2)))
	}
	d.inputs = append(d.inputs, pages)
	return d
}

// someNormal returns normal numbers; their count shares no factor with the length of a row.
var someNormal = sync.OnceValue(func() []float32 { return normal(1_000_003) })

// cacheOf returns what a cache of normal keys and values holds. With zeros all scores would be equal, and far more
// blocks than in a model would be ranked.
func cacheOf(c decode.KVCache) []float32 {
	some := someNormal()
	if spec.IsHalf(c.Half) {
		some = slices.Clone(some)
		for i, x := range some { // two bfloat16
			bits := math.Float32bits(x)
			some[i] = math.Float32frombits(bits&^0xffff | bits>>16)
		}
	}
	cache := make([]float32, c.Elements())
	for i := c.Slots * c.KVHeads; i < len(cache); { // behind the counters
		i += copy(cache[i:], some)
	}
	return cache
}

// addKeys reports the keys read a group. It ends the program if their number is wrong.
func (r *report) addKeys(d *decodeStep, what, size string) {
	var sum, groups int
	for _, layer := range d.counted {
		counts := must(graph.HostTensor(layer)).Int32s()
		for _, n := range counts {
			sum += int(n)
		}
		groups += len(counts) / 3
	}
	if want := d.read * groups; sum != want {
		check(fmt.Errorf("%s, %s: the kernels have read %d keys, want %d", what, size, sum, want))
	}
	r.add(what+", keys read", size, float64(sum)/float64(groups), "a group", against("expected", float64(d.read)))
}

// addDecode measures a step of all slots at token s. On a GPU it replays a captured graph of several layers, each with
// its own cache. It keeps the counts of keys, for results would be converted to float32.
func (r *report) addDecode(name string, shape attentionShape, c decode.KVCache, s int) {
	host, precision := r.backend.Device().Host, graph.F32
	layers, rounds, runs := 1, max(3, 1000/c.Slots/(1+s/8192)), 1
	if !host {
		layers, rounds, runs, precision = min(16, maxCache/(4*c.Elements())), 5, 20, trainPrecision
	}
	d := newDecodeStep(shape, c, s, layers)
	inputs := must(graph.MoveInputs(r.backend, append(slices.Clone(d.inputs), d.caches...)...))
	defer mustClose(inputs)
	m := must(graph.NewMachine(d.graph, graph.WithBackend(r.backend), graph.WithPrecision(precision),
		graph.WithCapture(), graph.WithConstantInputs(d.inputs...), graph.WithKeep(d.counted...)))
	defer mustClose(m)
	t := seconds(rounds, func() error {
		for range runs {
			check(m.RunAll())
		}
		return m.Synchronize()
	}) / float64(runs*layers)
	what, size := "decode, "+name, fmt.Sprintf("%s B=%d S=%d", shape.name, c.Slots, s)
	if host {
		r.add(what, size, t*1e3/float64(c.Slots), "ms a token")
	} else {
		values := map[string]string{"shape": shape.name, "length": strconv.Itoa(s), "batch": strconv.Itoa(c.Slots)}
		peer := cuDNNFigure("gpu_decode_peers.csv", "us", values)
		all := name == "all"
		r.add(what, size, t*1e6, "us",
			when(all && size == "i B=1 S=2048", atMost(15)), when(all || c.Dense(), against(densePeer, peer)))
		bytes := float64(d.read * c.Slots * c.KVHeads * 2 * (c.KeyDim + c.ValueDim))
		r.add(what+", keys and values", size, bytes/t/1e12, "TB/s", when(all && c.Slots >= 16, atLeast(3.5)))
	}
	r.addKeys(d, what, size)
}

// addDecoders measures models that decode, and how much faster a step of Tiny() is than a run of its whole context.
func addDecoders(r *report) {
	tiny := tinylm.Tiny()
	r.part(128, func() {
		w := must(tinylm.NewWeights(tiny, tensor.Float32, 1))
		step := r.addDecoder("Tiny()", "behind 128 tokens", w, 1, 128, 9, nil)
		size := fmt.Sprintf("%d tokens", tiny.Context)
		speed := timeModel(w, tiny.Context) / step
		r.add("Tiny() decodes, speed over a run of its context", size, speed, "times", atLeast(50))
	})
	r.part(1984, func() {
		w := must(tinylm.NewWeights(base, tensor.Float32, 1))
		step := r.addDecoder("Base()", "behind 1984 tokens", w, 1, 1984, 9, []note{atLeast(15)})
		if cpu.HasBF16() {
			half := r.addDecoder("Base() in bf16", "behind 1984 tokens", w, 1, 1984, 9, nil,
				tinylm.DecodeOn(r.backend, graph.BF16))
			r.add("Base() decodes in bf16, over float32", "behind 1984 tokens", step/half, "times", atLeast(1.6))
		}
	})
}

const decodeContext = 2048

// addDecodersOnGPU measures Base() with sequences of decodeContext.
func (r *report) addDecodersOnGPU() {
	w := must(tinylm.NewWeights(base, tensor.Float32, 1))
	check(w.MoveTo(r.backend))
	defer func() { check(w.Free()) }()
	for _, batch := range []int{1, 64} {
		least := map[int]float64{1: 2500, 64: 80000}[batch] // tokens a second
		size := fmt.Sprintf("batch %d, context %d", batch, decodeContext)
		step := r.addDecoder("Base()", size, w, batch, decodeContext-decodeSteps, 15, []note{atLeast(least)},
			tinylm.DecodeOn(r.backend, trainPrecision))
		r.add("Base() decodes, a step", size, step*1e6, "us")
	}
}

const decodeSteps = 64

// addDecoder reports the tokens a second of a model that prefills prompts and then decodes decodeSteps tokens, and
// returns the seconds of a step: medians over runs.
func (r *report) addDecoder(name, size string, w *tinylm.Weights, batch, prompt, runs int, notes []note,
	opts ...tinylm.DecoderOption) (step float64) {
	d := must(tinylm.NewDecoder(w, batch, prompt+decodeSteps, opts...))
	defer mustClose(d)
	tokens, next := sequence(prompt), make([]int32, batch)
	var prefills, decodes runTimes
	for range runs {
		start := time.Now()
		for i := range next {
			check(d.Prefill(i, tokens))
		}
		prefilled := time.Now()
		for range decodeSteps {
			check(d.Step(next))
		}
		prefills, decodes = append(prefills, prefilled.Sub(start)), append(decodes, time.Since(prefilled))
	}
	step = decodes.median().Seconds() / decodeSteps
	r.add(name+" prefills", size, float64(batch*prompt)/prefills.median().Seconds(), "tokens/s")
	r.add(name+" decodes", size, float64(batch)/step, "tokens/s", notes...)
	return step
}
