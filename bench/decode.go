package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops"
)

// decodeBranches are layers with some branches alone. The selected one chooses its blocks, by the keys of the compressed one.
var decodeBranches = []struct {
	name    string
	dense   bool
	without ops.Branches
}{
	{"all", false, 0},
	{"compressed", false, ops.Selected | ops.Window},
	{"choice and selected", false, ops.Compressed | ops.Window},
	{"window", false, ops.Compressed | ops.Selected},
	{"dense attention", true, 0},
}

// mostCache bounds the memory of a cache that is measured, in bytes.
const mostCache = 4 << 30

// benchDecode times the attention of one layer for one more token behind S of them, of each branch and of a batch of sequences, and
// holds the keys that its kernels have read to their number; then whole models.
func benchDecode(r *report) {
	shape := attentionShapes[0]
	for _, batch := range []int{1, 8, 64} {
		for s := 512; s <= 131072; s *= 4 {
			if skipsLength(s) {
				continue
			}
			for _, b := range decodeBranches {
				c := ops.KVCache{Params: base.Params, Without: b.without, KVHeads: shape.kvHeads, KeyDim: shape.dim, ValueDim: shape.valueDim,
					Slots: batch, Pages: batch * (s/pageLen + 1), PageLen: pageLen}
				if b.dense {
					c.Params = ops.Params{}
				}
				if c.Elements() > mostCache/4 {
					fmt.Printf("  %s, B=%d S=%d: a cache of %d MiB is left out\n", b.name, batch, s, c.Elements()>>18)
					continue
				}
				r.addDecode(b.name, shape, c, s)
			}
		}
	}
	addDecoders(r)
}

const pageLen = 512

// addDecode measures a step of all slots at token s.
func (r *report) addDecode(name string, shape attentionShape, c ops.KVCache, s int) {
	g := G.NewGraph()
	in := G.Nodes{input(g, "q", c.Slots, 1, shape.heads, c.KeyDim)}
	branches, read := 0, 0 // keys that a group reads
	add := func(name string) {
		in = append(in, input(g, name+" k", c.Slots, 1, c.KVHeads, c.KeyDim), input(g, name+" v", c.Slots, 1, c.KVHeads, c.ValueDim))
	}
	if c.Dense() {
		add("dense")
		read = s + 1
	} else {
		if c.Without&(ops.Compressed|ops.Selected) != ops.Compressed|ops.Selected {
			add("compressed")
			read += ops.NumVisible(s, c.BlockLen, c.Stride)
		}
		if c.Without&ops.Compressed == 0 {
			branches++
		}
		if c.Without&ops.Selected == 0 {
			add("selected")
			branches++
			read += min(s+1, (c.TopN-1)*c.SelectBlock+s%c.SelectBlock+1)
		}
		if c.Without&ops.Window == 0 {
			add("window")
			branches++
			read += min(s+1, c.Window)
		}
		in = append(in, input(g, "gates", c.Slots, 1, shape.heads, branches))
	}
	rows := tensor.New(tensor.Of(tensor.Int32), tensor.WithShape(c.Slots, 1+c.Pages/c.Slots))
	width := rows.Shape()[1]
	for i := range rows.Int32s() {
		rows.Int32s()[i] = int32(i/width*(width-1) + i%width - 1)
	}
	for i := range c.Slots {
		rows.Int32s()[i*width] = int32(s)
	}
	in = append(in, input(g, "cache", c.Elements()), G.NewTensor(g, tensor.Int32, 2, G.WithShape(rows.Shape()...), G.WithName("rows"), G.WithValue(rows)))
	o := must(ops.Apply(ops.DecodeOp{Cache: c, Base: 10000}, in...))
	counted := must(ops.Output(o, 2))
	m := must(graph.NewMachine(g, graph.WithKeep(o, counted)))
	defer closes(m)
	t := seconds(max(3, 1000/c.Slots/(1+s/8192)), m.RunAll)
	sum := 0
	for _, n := range counted.Value().(*tensor.Dense).Int32s() {
		sum += int(n)
	}
	size := fmt.Sprintf("%s B=%d S=%d", shape.name, c.Slots, s)
	r.add("decode, "+name, size, t*1e3/float64(c.Slots), "ms a token")
	if want := read * c.Slots * c.KVHeads; sum != want {
		check(fmt.Errorf("%s, %s: the kernels have read %d keys, want %d", name, size, sum, want))
	}
	r.add("decode, "+name+", keys read", size, float64(sum)/float64(c.Slots*c.KVHeads), "a group", against("expected", float64(read)))
}

// addDecoders measures models that decode, and what sampling costs without a cache.
func addDecoders(r *report) {
	for _, c := range []struct {
		name   string
		config tinylm.Config
		behind int
		least  float64 // tokens a second
	}{
		{"Tiny()", tinylm.Tiny(), 128, 0},
		{"Base()", base, 1984, 15},
	} {
		w := must(tinylm.NewWeights(c.config, tensor.Float32, 1))
		const steps = 64
		d := must(tinylm.NewDecoder(w, 1, c.behind+steps))
		defer closes(d)
		tokens := make([]int32, c.behind)
		for i := range tokens {
			tokens[i] = int32(i * 7919 % 256)
		}
		prefill := seconds(3, func() error { return d.Prefill(0, tokens) })
		var times []float64
		for range 9 {
			check(d.Prefill(0, tokens))
			start := time.Now()
			for range steps {
				check(d.Step(tokens[:1]))
			}
			times = append(times, time.Since(start).Seconds())
		}
		slices.Sort(times)
		t := times[len(times)/2]
		size := fmt.Sprintf("behind %d tokens", c.behind)
		r.add(c.name+" prefills", size, float64(c.behind)/prefill, "tokens/s")
		var notes []note
		if c.least > 0 {
			notes = append(notes, atLeast(c.least))
		}
		r.add(c.name+" decodes", size, steps/t, "tokens/s", notes...)
		if whole := timeModel(w, c.config.Context); c.least == 0 {
			r.add(c.name+" decodes, speed over a run of its context", fmt.Sprintf("%d tokens", c.config.Context), whole/(t/steps), "times", atLeast(50))
		}
	}
}

// decodeLine names the line of a figure of the suite in its plot: that of a branch at batch 1.
func decodeLine(x row) (name, peer, tokens string) {
	name, ok := strings.CutPrefix(x.what, "decode, ")
	tokens, one := strings.CutPrefix(x.size, "i B=1 S=")
	if !ok || !one {
		return "", "", ""
	}
	return name, "", tokens
}
