package tinylm

import (
	"fmt"
	"time"

	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Tiny returns the model that trains in minutes on a CPU: 0.93M parameters, with blocks so small that the selection has to
// choose within 256 bytes.
func Tiny() Config {
	return Config{Vocab: 256, Context: 256, Layers: 4, NSAConfig: nn.NSAConfig{
		Dim: 128, Heads: 4, KVHeads: 2, KeyDim: 32, ValueDim: 32, GateHidden: 16,
		Params: ops.Params{BlockLen: 16, Stride: 8, SelectBlock: 16, TopN: 6, Window: 48},
	}}
}

// TinyTraining returns the training that goes with Tiny: two minutes.
func TinyTraining() Training {
	return Training{
		Batch: 4, Duration: 2 * time.Minute,
		LR: 3e-3, Warmup: 0.03, Floor: 0.05, Decay: 0.1, Clip: 1,
		Evaluations: 10, EvalTokens: 16 << 10, FinalTokens: 256 << 10,
		SampleBytes: 400, Sampling: Sampling{Temperature: 0.8, TopK: 40},
	}
}

// Base returns the model of 12 layers of width 768 with the sizes of the paper's branches: 79M parameters.
func Base() Config {
	return Config{Vocab: 256, Context: 2048, Layers: 12, NSAConfig: nn.NSAConfig{
		Dim: 768, Heads: 12, KVHeads: 2, KeyDim: 64, ValueDim: 64, GateHidden: 64,
		Params: ops.Params{BlockLen: 32, Stride: 16, SelectBlock: 64, TopN: 16, Window: 512},
	}}
}

// BaseTraining returns the training that goes with Base: an hour, with short evaluations.
func BaseTraining() Training {
	t := TinyTraining()
	t.Batch, t.Duration, t.LR = 1, time.Hour, 6e-4
	t.Evaluations, t.EvalTokens, t.FinalTokens = 5, 4<<10, 16<<10
	t.SampleBytes = 100
	return t
}

// Preset returns the model and the training of the given name, "tiny" or "base".
func Preset(name string) (Config, Training, error) {
	switch name {
	case "tiny":
		return Tiny(), TinyTraining(), nil
	case "base":
		return Base(), BaseTraining(), nil
	}
	return Config{}, Training{}, fmt.Errorf("tinylm: no preset %q, want one of: base, tiny", name)
}
