package main

import (
	"fmt"
	"slices"
	"strconv"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops"
)

// benchDecodeOnGPU times the attention of one layer for one more token, in bf16. It replays a captured graph of several layers, each with
// its own cache, and checks the number of keys that the kernels have read. Then it times Base().
func benchDecodeOnGPU(r *report) {
	for _, shape := range attentionShapes {
		for _, s := range []int{512, 2048, 8192, 32768, 65536, 131072} {
			for _, batch := range []int{1, 8, 16, 64} {
				r.part(s, func() { measureBranches(r.addDecodeOnGPU, shape, batch, s, ops.BFloat16) })
			}
		}
	}
	r.part(decodeContext, r.addDecodersOnGPU)
}

// addDecodeOnGPU measures a step of all slots at token s: the microseconds a layer, and the bytes of keys and values read a second. It keeps
// the counts of keys, for results would be converted to float32.
func (r *report) addDecodeOnGPU(name string, shape attentionShape, c ops.KVCache, s int) {
	const runs = 20
	layers := min(16, maxCache/(4*c.Elements()))
	d := newDecodeStep(shape, c, s, layers)
	inputs := must(graph.MoveInputs(r.backend, append(slices.Clone(d.inputs), d.caches...)...))
	defer mustClose(inputs)
	m := must(graph.NewMachine(d.graph, graph.WithBackend(r.backend), graph.WithPrecision(trainPrecision), graph.WithCapture(),
		graph.WithConstantInputs(d.inputs...), graph.WithKeep(d.counted...)))
	defer mustClose(m)
	var times runTimes
	for range 6 {
		start, end := must(m.NewEvent()), must(m.NewEvent())
		check(start.Record())
		for range runs {
			check(m.RunAll())
		}
		check(end.Record())
		check(m.Synchronize())
		times = append(times, must(end.Since(start)))
		check(start.Close())
		check(end.Close())
	}
	t := times[1:].median().Seconds() / float64(runs*layers)
	size := fmt.Sprintf("%s B=%d S=%d", shape.name, c.Slots, s)
	what := "decode, " + name
	var notes []note
	peer := cuDNNFigure("gpu_decode_peers.csv", "us", map[string]string{"shape": shape.name, "length": strconv.Itoa(s), "batch": strconv.Itoa(c.Slots)})
	switch {
	case name == "all" && size == "i B=1 S=2048":
		notes = append(notes, atMost(15))
	case peer > 0 && (name == "all" || c.Dense()):
		notes = append(notes, against(densePeer, peer))
	}
	r.add(what, size, t*1e6, "us", notes...)
	notes = nil
	if name == "all" && c.Slots >= 16 {
		notes = append(notes, atLeast(3.5))
	}
	r.add(what+", keys and values", size, float64(d.read*c.Slots*c.KVHeads*2*(c.KeyDim+c.ValueDim))/t/1e12, "TB/s", notes...)
	r.addKeys(d, what, size)
}

const decodeContext = 2048

// addDecodersOnGPU measures Base() with sequences of decodeContext.
func (r *report) addDecodersOnGPU() {
	w := must(tinylm.NewWeights(base, tensor.Float32, 1))
	check(w.MoveTo(r.backend))
	for _, x := range []struct {
		batch int
		least float64 // tokens a second
	}{{1, 2500}, {64, 80000}} {
		const steps = 64
		const prompt = decodeContext - steps
		d := must(tinylm.NewDecoder(w, x.batch, decodeContext, tinylm.DecodeOn(r.backend, trainPrecision)))
		t := stepSeconds(d, prompt, steps, 15)
		size := fmt.Sprintf("batch %d, context %d", x.batch, decodeContext)
		r.add("Base() decodes", size, float64(x.batch)/t, "tokens/s", atLeast(x.least))
		r.add("Base() decodes, a step", size, t*1e6, "us")
		check(d.Close())
	}
	check(w.Free())
}
