package lm_test

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/lm"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// TestGGUFLikeTransformers: the tokens and the logits of ten prompts, and 200 greedy tokens after each, are those of
// transformers. NSA_TEST_GGUF names a file beside which testdata/gguf.py has written what transformers makes of it.
func TestGGUFLikeTransformers(t *testing.T) {
	path := os.Getenv("NSA_TEST_GGUF")
	if path == "" {
		t.Skip("NSA_TEST_GGUF is not set")
	}
	var want []struct {
		Prompt      string
		IDs, Greedy []int32
		Logits      []float64
	}
	require.NoError(t, json.Unmarshal(testutil.Must(os.ReadFile(path+".json"))(t), &want))
	tokens := testutil.Must(lm.OpenTokenizer(path, ""))(t)
	d := testutil.Must(tinylm.NewDecoder(testutil.Must(lm.ReadWeights(path))(t), 1, 512))(t)
	defer d.Close()
	for _, w := range want {
		require.Equal(t, w.IDs, testutil.Must(tokens.Encode(w.Prompt))(t))
		require.NoError(t, d.Prefill(0, w.IDs))
		testutil.Within(t, w.Prompt, float64s(d.Logits(0)), w.Logits, 1e-4)
		for _, id := range w.Greedy {
			require.EqualValues(t, id, slices.Index(d.Logits(0), slices.Max(d.Logits(0))), w.Prompt)
			require.NoError(t, d.Step([]int32{id}))
		}
	}
}
