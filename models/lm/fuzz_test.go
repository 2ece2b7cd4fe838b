package lm

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// FuzzConfig: any config.json is a valid configuration, which is written and read again as itself, or an error.
func FuzzConfig(f *testing.F) {
	for _, name := range []string{"llama3", "llama_bias", "qwen2", "qwen3", "mistral"} {
		f.Add(testutil.Must(os.ReadFile("testdata/" + name + "/config.json"))(f))
	}
	f.Add([]byte(`{"model_type": "nsa_llama", "vocab_size": 5, "max_position_embeddings": 64, "hidden_size": 8,
		"intermediate_size": 6, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 4, "hidden_act": "silu",
		"nsa": {"attention": "dense,nsa", "phi": "mlp", "phi_hidden": 2, "gate_hidden": 3, "gate_activation": "softmax",
		"params": {"block_len": 8, "stride": 4, "select_block": 8, "top_n": 3, "window": 5}, "without": 4,
		"qk_norm_eps": 0.1, "qkv_bias": true}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parseConfig(text)
		if err != nil {
			require.Less(t, len(err.Error()), 400)
			return
		}
		require.NoError(t, c.Validate())
		h, err := hubConfigOf(c.WithDefaults())
		if err != nil { // of no family
			return
		}
		again, err := parseConfig(testutil.Must(json.Marshal(h))(t))
		require.NoError(t, err)
		require.Equal(t, c.WithDefaults(), again.WithDefaults())
	})
}
