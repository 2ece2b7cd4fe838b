package lm_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/lm"
	"github.com/gorgonia-nsa/nsa/models/lm/pretrained"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// families are folders that transformers has written, of random models: see testdata/make.py.
var families = []string{"llama3", "llama_bias", "qwen2", "qwen3", "mistral"}

// TestLogitsOfTransformers: whole texts, and texts token by token, have the logits of transformers, before and after the
// model is written and read again.
func TestLogitsOfTransformers(t *testing.T) {
	for _, name := range families {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join("testdata", name)
			want := testutil.Must(safetensors.Read(filepath.Join(path, "logits.safetensors")))(t).Tensors
			w := testutil.Must(lm.ReadWeights(path))(t)
			checkLogits(t, w, want)
			for _, layout := range []pretrained.Layout{{}, {ShardBytes: 9000}} {
				again := filepath.Join(t.TempDir(), "model")
				require.NoError(t, lm.Save(w, again, layout))
				require.True(t, lm.IsModel(again))
				device := fakedevice.New()
				onDevice := testutil.Must(lm.OpenWeights(again))(t)
				require.NoError(t, onDevice.MoveTo(device))
				require.Nil(t, onDevice.Tensors)
				require.NoError(t, onDevice.Download())
				for _, w2 := range []*tinylm.Weights{testutil.Must(lm.ReadWeights(again))(t), onDevice} {
					require.Equal(t, w.Config, w2.Config)
					for name, v := range w.Tensors {
						require.Equal(t, v.Float32s(), w2.Tensors[name].Float32s(), name)
					}
				}
				require.NoError(t, onDevice.Free())
				require.Zero(t, device.MemoryInUse)
				require.ErrorContains(t, lm.Save(w, again, layout), "there already")
			}
		})
	}
}

func checkLogits(t *testing.T, w *tinylm.Weights, want map[string]*tensor.Dense) {
	t.Helper()
	tokens, logits := want["tokens"], want["logits"]
	batch, seq := tokens.Shape()[0], tokens.Shape()[1]
	m := testutil.Must(tinylm.NewModel(w, batch, seq))(t)
	defer m.Close()
	copy(m.Tokens(), tokens.Int32s())
	require.NoError(t, m.Run())
	got := testutil.Must(m.Logits())(t)
	testutil.Within(t, "logits", float64s(got.Float32s()), float64s(logits.Float32s()), 1e-5)

	d := testutil.Must(tinylm.NewDecoder(w, 1, seq))(t)
	defer d.Close()
	row, vocab := tokens.Int32s()[:seq], w.Config.Vocab
	require.NoError(t, d.Prefill(0, row[:seq/2]))
	for i := seq / 2; i < seq; i++ {
		testutil.Within(t, "logits of the decoder", float64s(d.Logits(0)), float64s(logits.Float32s()[(i-1)*vocab:][:vocab]), 1e-5)
		require.NoError(t, d.Step(row[i:i+1]))
	}
}

func float64s(list []float32) []float64 {
	out := make([]float64, len(list))
	for i, x := range list {
		out[i] = float64(x)
	}
	return out
}

// TestRefusedModels: a model that this package would not compute as transformers does, or whose file has other tensors,
// is an error that says what is wrong.
func TestRefusedModels(t *testing.T) {
	for _, c := range []struct{ old, new, err string }{
		{`"llama"`, `"gpt2"`, "model_type"},
		{`"silu"`, `"gelu"`, "hidden_act"},
		{`"mlp_bias": false`, `"mlp_bias": true`, "mlp_bias"},
		{`"llama3"`, `"yarn"`, "rotary"},
		{`"factor": 8.0`, `"factor": 0`, "factor"},
		{`"tie_word_embeddings": false`, `"quantization_config": {"bits": 4}`, "quantised"},
		{`"tie_word_embeddings": false`, `"partial_rotary_factor": 0.5`, "partial_rotary"},
		{`"num_attention_heads": 4`, `"num_attention_heads": 0`, "num_attention_heads"},
		{`"num_key_value_heads": 2`, `"num_key_value_heads": 3`, "heads"},
		{`"vocab_size": 67`, `"vocab_size": 68`, "shape"},
		{`"num_hidden_layers": 2`, `"num_hidden_layers": 1`, "not of the model model.layers.1."},
		{`"num_hidden_layers": 2`, `"num_hidden_layers": 3`, "missing model.layers.2."},
		{`"attention_bias": false`, `"attention_bias": true`, "missing model.layers.0.self_attn.k_proj.bias"},
		{`"hidden_size": 16`, `"hidden_size": 17179869184`, "dim"},
		{`"vocab_size": 67`, `"vocab_size": "many"`, "JSON"},
	} {
		folder := t.TempDir()
		text := string(testutil.Must(os.ReadFile("testdata/llama3/config.json"))(t))
		require.Contains(t, text, c.old)
		changed := strings.Replace(text, c.old, c.new, 1)
		require.NoError(t, os.WriteFile(filepath.Join(folder, "config.json"), []byte(changed), 0o666))
		weights := testutil.Must(os.ReadFile("testdata/llama3/model.safetensors"))(t)
		require.NoError(t, os.WriteFile(filepath.Join(folder, "model.safetensors"), weights, 0o666))
		_, err := lm.ReadWeights(folder)
		require.ErrorContains(t, err, c.err, c.new)
	}
}
