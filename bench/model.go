package main

import (
	"fmt"
	"sync"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// benchModel times Base() at batch 1, forward, and forward with all gradients. It has two peers: a PyTorch 2.15 model
// of the same width and depth (74M parameters) with SDPA in float32 on the same two cores, and the PyTorch system that
// this project replaces, on an A100. Casts of weights to bf16 are part of a run.
func benchModel(r *report) {
	weights := sync.OnceValue(func() *tinylm.Weights { return must(tinylm.NewWeights(base, tensor.Float32, 1)) })
	gradients := []tinylm.ModelOption{tinylm.WithGradients()}
	for _, c := range []struct {
		s                       int
		opts                    []tinylm.ModelOption
		target, dense, replaced float64 // seconds; 0 for none
	}{
		{128, nil, 0.2, 0.130, 2.65},
		{512, nil, 0.8, 0.493, 11.7},
		{2048, nil, 3.5, 2.48, 120},
		{8192, nil, 14, 15.1, 0},
		{128, gradients, 0, 0.643, 0},
		{512, gradients, 0, 1.71, 0},
		{2048, gradients, 11, 7.26, 0},
	} {
		r.part(c.s, func() {
			t := timeModel(weights(), c.s, c.opts...)
			what, size := "Base(), forward", fmt.Sprintf("S=%d", c.s)
			if c.opts != nil {
				what = "Base(), forward and backward"
			}
			r.add(what, size, t, "s", against("dense PyTorch, same cores, peer figure", c.dense),
				when(c.target > 0, atMost(c.target)))
			if c.replaced > 0 {
				r.add(what, size, t, "s", against("replaced PyTorch system on an A100, peer figure", c.replaced))
			}
			if cpu.HasBF16() {
				half := timeModel(weights(), c.s, append(c.opts[:len(c.opts):len(c.opts)],
					tinylm.WithMachine(graph.WithPrecision(graph.BF16)))...)
				r.add(what+" in bf16", size, half, "s", against("dense PyTorch in float32, same cores, peer figure", c.dense))
				r.add(what+" in bf16, over float32", size, t/half, "times")
			}
		})
	}
}

// timeModel returns the seconds of one run over s tokens.
func timeModel(w *tinylm.Weights, s int, opts ...tinylm.ModelOption) float64 {
	m := must(tinylm.NewModel(w, 1, s, opts...))
	defer mustClose(m)
	fillTokens(m)
	return seconds(3, m.Run)
}
