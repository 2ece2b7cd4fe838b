package main

import (
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// peer figures of the model suite, all for batch 1. Dense: a PyTorch 2.15 model of the same width and depth (74M
// parameters) with SDPA on the same two cores, float32. Replaced: the PyTorch system that this project replaces, on an
// A100.
var (
	denseForward  = map[int]float64{128: 0.130, 512: 0.493, 2048: 2.48, 8192: 15.1}
	denseBackward = map[int]float64{128: 0.643, 512: 1.71, 2048: 7.26}
	replaced      = map[int]float64{128: 2.65, 512: 11.7, 2048: 120}

	forwardTargets  = map[int]float64{128: 0.2, 512: 0.8, 2048: 3.5, 8192: 14}
	backwardTargets = map[int]float64{2048: 11}
)

// benchModel times Base() at batch 1, forward, and forward with all gradients.
func benchModel(r *report) error {
	w, err := tinylm.NewWeights(tinylm.Base(), tensor.Float32, 1)
	if err != nil {
		return err
	}
	for _, s := range []int{128, 512, 2048, 8192} {
		t, err := timeModel(w, s)
		if err != nil {
			return err
		}
		size := fmt.Sprintf("S=%d", s)
		r.add("Base(), forward", size, t, "s", goal(forwardTargets, s), "dense PyTorch, same cores, peer figure", denseForward[s])
		if old, ok := replaced[s]; ok {
			r.add("Base(), forward", size, t, "s", nil, "replaced PyTorch system on an A100, peer figure", old)
		}
	}
	for _, s := range []int{128, 512, 2048} {
		t, err := timeModel(w, s, tinylm.WithGradients())
		if err != nil {
			return err
		}
		r.add("Base(), forward and backward", fmt.Sprintf("S=%d", s), t, "s", goal(backwardTargets, s),
			"dense PyTorch, same cores, peer figure", denseBackward[s])
	}
	return nil
}

func goal(targets map[int]float64, s int) *target {
	if v, ok := targets[s]; ok {
		return atMost(v)
	}
	return nil
}

// timeModel returns the seconds of one run over s tokens.
func timeModel(w *tinylm.Weights, s int, opts ...tinylm.ModelOption) (float64, error) {
	m, err := tinylm.NewModel(w, 1, s, opts...)
	if err != nil {
		return 0, err
	}
	defer m.Close()
	for i := range m.Tokens() {
		m.Tokens()[i] = int32(i * 7919 % 256)
	}
	m.NextTokens()
	return seconds(3, m.Run)
}
