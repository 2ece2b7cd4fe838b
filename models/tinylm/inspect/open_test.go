package inspect

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// write writes files and makes their folders.
func write(t *testing.T, folder string, files map[string]string) {
	for name, content := range files {
		path := filepath.Join(folder, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
}

// TestOpen opens a file of weights and a run. The tests of package generate cover everything that train.Find finds.
func TestOpen(t *testing.T) {
	weights := filepath.Join(t.TempDir(), "w.safetensors")
	require.NoError(t, weightsOf(t, small()).Save(weights))
	content := string(testutil.Must(os.ReadFile(weights))(t))
	for name, c := range map[string]struct {
		files map[string]string
		path  string
		want  string
	}{
		"file":      {map[string]string{"w": content}, "w", "w"},
		"ended run": {map[string]string{"model.safetensors": content, "checkpoints/step-9/model.safetensors": content, "config.yaml": "preset: tiny\n"}, ".", "model.safetensors"},
	} {
		folder := t.TempDir()
		write(t, folder, c.files)
		o := testutil.Must(Open(filepath.Join(folder, c.path), ""))(t)
		require.Equal(t, filepath.Join(folder, c.want), o.Path, name)
		require.Equal(t, small().WithDefaults(), o.Weights.Config)
		require.Equal(t, []int32{'a', 0xff}, testutil.Must(o.Tokenizer.Encode("a\xff"))(t))
		require.Equal(t, "a\xff", testutil.Must(o.Tokenizer.Decode([]int32{'a', 0xff}))(t))
	}
}

func TestOpenRefuses(t *testing.T) {
	other := small()
	other.Vocab = 300
	path := filepath.Join(t.TempDir(), "w")
	require.NoError(t, weightsOf(t, other).Save(path))
	content := string(testutil.Must(os.ReadFile(path))(t))
	missing := filepath.Join(t.TempDir(), "missing.json")
	for _, c := range []struct {
		files              map[string]string
		tokenizer, message string
	}{
		{nil, "", "neither model.safetensors nor a checkpoint"},
		{map[string]string{"model.safetensors": "no weights"}, "", "safetensors"},
		{map[string]string{"model.safetensors": content}, "", "the model has 300 tokens, a text of bytes has 256"},
		{map[string]string{"model.safetensors": content}, missing, "corpus: tokenizer: open " + missing},
		{map[string]string{"model.safetensors": content, "config.yaml": "layers: many"}, "", "train: options"},
	} {
		folder := t.TempDir()
		write(t, folder, c.files)
		_, err := Open(folder, c.tokenizer)
		require.ErrorContains(t, err, "inspect: open: ")
		require.ErrorContains(t, err, c.message)
	}
	require.ErrorContains(t, testutil.Err(Open(filepath.Join(t.TempDir(), "nothing"), "")), "inspect: open: ")
	t.Chdir(t.TempDir())
	write(t, ".", map[string]string{"run/model.safetensors": content, "run/config.yaml": "tokenizer: lost.json\n"})
	require.ErrorContains(t, testutil.Err(Open("run", "")), "lost.json")
}
