package train

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// TestModelOfAnotherFamily: a dense model with gated MLPs, a tied head, biases and norms of queries is trained, in whole
// with dense and with sparse layers, by low-rank updates alone, and in its sparse layers alone. Each run is stopped and
// resumed to the same bits, and begins another one.
func TestModelOfAnotherFamily(t *testing.T) {
	t.Parallel()
	c := tinylm.Config{Vocab: 256, Context: 64, Layers: 2, Attention: tinylm.Dense,
		Family:    tinylm.Family{MLPDim: 48, GatedMLP: true, TiedHead: true, NormEps: 1e-5},
		NSAConfig: nn.NSAConfig{Dim: 32, Heads: 2, KVHeads: 1, KeyDim: 16, ValueDim: 16, RoPEBase: 500}}
	c.QKVBias, c.QKNorm = true, 1e-5
	base := testutil.Must(tinylm.NewWeights(c, tensor.Float32, 1))(t)
	file := filepath.Join(t.TempDir(), "base.safetensors")
	require.NoError(t, base.Save(file))

	data := smallArgs(t, 4)[2:4] // not the sizes: they are those of the weights
	args := append([]string{"-steps", "4", "-init", file, "-batch", "2", "-context", "64", "-optimizer", "adamw", "-lr", "1e-3",
		"-eval-tokens", "512", "-final-eval", "1024", "-sample", "8", "-device", "cpu"}, data...)
	sparse := []string{"-attention", "nsa", "-block", "8", "-stride", "4", "-select-block", "8", "-top-n", "4", "-window", "16",
		"-gate-hidden", "8"}
	for _, more := range [][]string{nil, sparse, {"-lora", "4"}, append(sparse, "-lora", "4"), append(sparse, "-align")} {
		whole := newRun(t, append(args, more...)...)
		w := testutil.Must(tinylm.LoadWeights(filepath.Join(whole, modelFile)))(t)
		require.Equal(t, base.Config.Family, w.Config.Family)
		require.Equal(t, base.Config.Projections, w.Config.Projections)
		for name, v := range base.Tensors {
			if trained := w.Tensors[name]; trained != nil && !w.Config.Trains(name) {
				require.Equal(t, v.Data(), trained.Data(), name)
			} else if trained != nil {
				require.NotEqual(t, v.Data(), trained.Data(), name)
			}
		}
		stopped := newFolder(t)
		stopAfter(t, 2, append(append(args, more...), "-out", stopped)...)
		testutil.Must(runArgs(t, "-resume", stopped))(t)
		again := testutil.Must(tinylm.LoadWeights(filepath.Join(stopped, modelFile)))(t)
		require.Equal(t, w.Config, again.Config)
		for name, v := range w.Tensors {
			require.Equal(t, v.Data(), again.Tensors[name].Data(), name)
		}
		newRun(t, append([]string{"-steps", "1", "-init", whole}, data...)...)
	}
	require.ErrorContains(t, refusal("-align", "-out", newFolder(t)), "-align without -init")
	require.ErrorContains(t, refusal(append(args, "-align", "-out", newFolder(t))...), "layers that are not dense")
	require.ErrorContains(t, refusal("-lora", "4", "-out", newFolder(t)), "-lora without -init")
	require.ErrorContains(t, refusal(append(args, "-lora", "-1", "-out", newFolder(t))...), "lora")
}
