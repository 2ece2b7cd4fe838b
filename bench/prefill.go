package main

import (
	"fmt"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// The prompts of the suite prefill, and the chunks in which those of prefillLengths run, besides whole.
var (
	prefillLengths = []int{16384, 65536, 262144}
	prefillChunks  = []int{2048, 4096, 8192, 16384, 32768}
	sharedLengths  = []int{2048, 8192}
)

// sharedPrompts prompts begin alike: each has its own last sharedOwn tokens.
const sharedPrompts, sharedOwn = 16, 256

// benchPrefill times prompts of Base(), whole and in chunks, and prompts that begin alike.
func benchPrefill(r *report) {
	var w *tinylm.Weights
	defer func() { check(w.Free()) }()
	weights := func() *tinylm.Weights {
		if w == nil {
			w = must(tinylm.NewWeights(base, tensor.Float32, 1))
			check(w.MoveTo(r.backend))
		}
		return w
	}
	for _, s := range prefillLengths {
		r.part(s, func() { r.addPrefills(weights(), s, prefillChunks) })
	}
	for _, s := range sharedLengths {
		r.part(s, func() { r.addShared(weights(), sharedPrompts, s, sharedOwn) })
	}
}

// decodeOnBackend returns the option of a decoder that runs in half precision, if the device has it.
func (r *report) decodeOnBackend() tinylm.DecoderOption {
	if !r.backend.Device().Half {
		return tinylm.DecodeOn(r.backend, graph.F32)
	}
	return tinylm.DecodeOn(r.backend, trainPrecision)
}

// addPrefills reports time and memory of a prompt of s tokens, whole and in those chunks that are shorter.
func (r *report) addPrefills(w *tinylm.Weights, s int, chunks []int) {
	tokens, size, whole := sequence(s), fmt.Sprintf("S=%d", s), [2]float64{}
	for _, chunk := range slices.Concat([]int{s}, chunks) {
		if chunk >= s && whole[0] > 0 {
			continue
		}
		func() {
			d := must(tinylm.NewDecoder(w, 1, s, r.decodeOnBackend(), tinylm.PrefillChunk(chunk)))
			defer mustClose(d)
			rate := float64(s) / seconds(3, func() error { return d.Prefill(0, tokens) })
			memory := 0
			for _, p := range d.PrefillPlans() {
				memory += p.Memory()
			}
			got, what := [2]float64{rate, float64(memory) / (1 << 20)}, fmt.Sprintf("in chunks of %d", chunk)
			if chunk == s {
				what = "whole"
			}
			r.add("a prompt "+what, size, got[0], "tokens/s", against("whole, same run", whole[0]))
			r.add("memory of a prompt "+what, size, got[1], "MiB", against("whole, same run", whole[1]))
			if chunk == s {
				whole = got
			}
		}()
	}
}

// addShared reports the time of n prompts of s tokens that differ in their last own tokens, each prefilled by itself
// and with their prefix shared, and the time in which a sequence takes over the prefix.
func (r *report) addShared(w *tinylm.Weights, n, s, own int) {
	d := must(tinylm.NewDecoder(w, n, s, r.decodeOnBackend()))
	defer mustClose(d)
	prompts, prefix := make([][]int32, n), sequence(s-own)
	for i := range prompts {
		prompts[i] = append(slices.Clone(prefix), sequence(i + own)[i:]...)
	}
	prefill := func(prefix []int32) float64 {
		return float64(n*s) / seconds(3, func() error {
			check(d.SharePrefix(nil)) // the next call of Prefill computes it again
			check(d.SharePrefix(prefix))
			for slot, tokens := range prompts {
				check(d.Prefill(slot, tokens))
			}
			return nil
		})
	}
	size := fmt.Sprintf("%d of S=%d, %d in common", n, s, s-own)
	alone, shared := prefill(nil), prefill(prefix)
	r.add("prompts, each by itself", size, alone, "tokens/s")
	r.add("prompts that share their prefix", size, shared, "tokens/s", against("each by itself, same run", alone))
	takeOver := seconds(9, func() error { return d.Prefill(0, prefix) })
	r.add("a sequence takes over a shared prefix", size, takeOver*1e6, "us")
}
