package lm_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/lm"
	"github.com/gorgonia-nsa/nsa/models/lm/pretrained"
)

// TestAdapterOfPEFT: a model with an adapter of peft has its logits, merged and not, and after the adapter is written and
// read again.
func TestAdapterOfPEFT(t *testing.T) {
	base := testutil.Must(lm.ReadWeights("testdata/llama3"))(t)
	want := testutil.Must(safetensors.Read("testdata/adapter/logits.safetensors"))(t).Tensors
	w := testutil.Must(lm.ReadAdapter(base, "testdata/adapter"))(t)
	checkLogits(t, w, want)
	checkLogits(t, testutil.Must(w.Merged())(t), want)

	folder := filepath.Join(t.TempDir(), "adapter")
	require.NoError(t, lm.SaveAdapter(w, folder))
	checkLogits(t, testutil.Must(lm.ReadAdapter(base, folder))(t), want)
	require.ErrorIs(t, lm.SaveAdapter(w, folder), os.ErrExist)
	require.ErrorContains(t, lm.SaveAdapter(base, t.TempDir()), "no low-rank updates")
	require.ErrorContains(t, lm.Save(w, filepath.Join(t.TempDir(), "x"), pretrained.Layout{}), "Merged")
	require.ErrorContains(t, testutil.Err(lm.ReadAdapter(w, folder)), "rank 3")
}

func TestRefusedAdapters(t *testing.T) {
	base := testutil.Must(lm.ReadWeights("testdata/llama3"))(t)
	text := string(testutil.Must(os.ReadFile("testdata/adapter/adapter_config.json"))(t))
	weights := testutil.Must(os.ReadFile("testdata/adapter/adapter_model.safetensors"))(t)
	for _, c := range []struct{ old, new, err string }{
		{`"LORA"`, `"IA3"`, "plain LoRA"},
		{`"use_dora": false`, `"use_dora": true`, "plain LoRA"},
		{`"bias": "none"`, `"bias": "all"`, "plain LoRA"},
		{`"rank_pattern": {}`, `"rank_pattern": {"q_proj": 8}`, "one rank"},
		{`"r": 3`, `"r": 4`, "do not fit"},
		{`"r": 3`, `"r": 0`, "rank 0"},
		{`"r": 3`, `"r": "x"`, "JSON"},
	} {
		folder := t.TempDir()
		require.Contains(t, text, c.old)
		changed := []byte(strings.Replace(text, c.old, c.new, 1))
		require.NoError(t, os.WriteFile(filepath.Join(folder, "adapter_config.json"), changed, 0o666))
		require.NoError(t, os.WriteFile(filepath.Join(folder, "adapter_model.safetensors"), weights, 0o666))
		_, err := lm.ReadAdapter(base, folder)
		require.ErrorContains(t, err, c.err, c.new)
	}
	require.ErrorIs(t, testutil.Err(lm.ReadAdapter(base, t.TempDir())), os.ErrNotExist)
	for _, err := range []error{lm.SaveAdapter(nil, ""), lm.Save(nil, "", pretrained.Layout{}), testutil.Err(lm.ReadAdapter(nil, ""))} {
		require.ErrorContains(t, err, "no weights")
	}
}
