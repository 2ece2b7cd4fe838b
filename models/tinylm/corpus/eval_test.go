package corpus

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestEvalData: data of their own are all of the held-out text, and nothing of the others is held out.
func TestEvalData(t *testing.T) {
	documents := testutil.Documents(200, 60, 1)
	folder := writeFiles(t, map[string][]byte{
		"train.jsonl": jsonl(t, documents), "eval.txt.gz": []byte("held out alone"),
		"inside/valid.json": []byte(`["one", "two", 3]`), "empty.txt": nil,
	})
	path := func(name string) string { return filepath.Join(folder, name) }
	s := Shape{Batch: 1, Seq: 1 << 20}
	plain := open(t, path("train.jsonl"), Options{HeldOut: 1 << 20}, 1<<20)
	hashes := map[string]bool{plain.Hash(): true}
	for _, c := range []struct {
		eval string
		held []string
	}{{"eval.txt.gz", []string{"held out alone"}}, {"inside", []string{"one", "two"}},
		{"inside/valid.json", []string{"one", "two"}}} {
		c0 := open(t, path("train.jsonl"), Options{HeldOut: 1 << 20, EvalData: path(c.eval)}, 1<<20)
		require.Equal(t, sorted(documents), textsOf(t, epochOf(t, c0, s, Cursor{})))
		require.Equal(t, c.held, textsOf(t, testutil.Must(c0.HeldOut(s, 0))(t)))
		require.EqualValues(t, 1, c0.BytesPerToken())
		hashes[c0.Hash()] = true

		// evaluation data inside of the data are left out
		all := open(t, folder, Options{HeldOut: 1 << 20, EvalData: path(c.eval)}, 1<<20)
		for _, text := range textsOf(t, epochOf(t, all, s, Cursor{})) {
			require.NotContains(t, c.held, text)
		}
		require.Contains(t, all.Skipped(), Skipped{reasonEval, 1, c.eval})
	}
	require.Len(t, hashes, 3, "the hash depends on the evaluation data, not on their place")

	c := open(t, path("train.jsonl"), Options{HeldOut: 1 << 20, EvalData: path("eval.txt.gz")}, 1000)
	after := epochOf(t, c, Shape{Batch: 1, Seq: 32}, Cursor{})[3].After
	require.NoError(t, c.checkCursor(after, 32))
	require.NoError(t, os.WriteFile(path("eval.txt.gz"), compress(t, []byte("something else"), ".gz"), 0o644))
	c = open(t, path("train.jsonl"), Options{HeldOut: 1 << 20, EvalData: path("eval.txt.gz")}, 1000)
	require.ErrorContains(t, c.checkCursor(after, 32), "held-out part have changed")

	for _, c := range []struct{ data, eval, want string }{
		{"train.jsonl", "train.jsonl", "has both the training data and the evaluation data"},
		{"train.jsonl", "none", "none"},
		{"train.jsonl", "empty.txt", "evaluation data: " + path("empty.txt") + " is empty"},
		{"inside/valid.json", "inside", "has no file to read: 1 skipped as training data"},
	} {
		require.ErrorContains(t, openError(t, path(c.data), Options{HeldOut: 100, EvalData: path(c.eval)}), c.want)
	}
	require.NoError(t, os.WriteFile(path("short.txt"), []byte("x"), 0o644))
	c = open(t, path("train.jsonl"), Options{HeldOut: 100, EvalData: path("short.txt")}, 1000)
	require.Equal(t, 2, c.held.tokens.len()) // with the separator
	c = open(t, path("train.jsonl"), Options{HeldOut: 100, EvalData: path("inside")}, 1000)
	require.Contains(t, c.Skipped(), Skipped{reasonNoText + " (evaluation data)", 1, "valid.json"})
}

// TestNamesInAnyCase: extensions decide in upper case, too, and -ext takes names in any case.
func TestNamesInAnyCase(t *testing.T) {
	folder := writeFiles(t, map[string][]byte{
		"a.JSONL": []byte(`{"text":"one"}`), "b.NdJson.GZ": []byte(`{"text":"two"}`),
		"c.Json.ZST": []byte(`["three"]`), "d.PARQUET": parquetBytes(t, []string{"four"}, 1),
		"e.TXT.Gz": []byte("five"), "README.MD": []byte("six"),
	})
	s := Shape{Batch: 1, Seq: 1000}
	c := open(t, folder, Options{}, 1000)
	require.Equal(t, sorted(strings.Fields("one two three four five six")), textsOf(t, epochOf(t, c, s, Cursor{})))
	c = open(t, folder, Options{Ext: ".md"}, 1000)
	require.Equal(t, []string{"six"}, textsOf(t, epochOf(t, c, s, Cursor{})))
	for name, content := range map[string][]byte{"a.BIN": llmcBytes([]string{"text"}),
		"a.NPY": numpyBytes([]int32{1, 2, 3}, 1)} {
		c := open(t, filepath.Join(writeFiles(t, map[string][]byte{name: content}), name), Options{}, 1000)
		require.True(t, c.source.(*fileSource).files[0].isTokens())
	}
}

// TestHashOfOlderVersions: the hash of data that earlier versions read in the same way is theirs, so that their runs
// can be resumed.
func TestHashOfOlderVersions(t *testing.T) {
	for name, content := range map[string]string{"a.txt": "some text", "a.jsonl": `{"text":"some text"}`,
		"a.jsonl.gz": `{"text":"some text"}`} {
		f := testutil.Must(describe(name, name, int64(len(content)), ""))(t)
		require.False(t, f.readsOtherwise(), name)
	}
	for _, name := range []string{"a.json", "a.ndjson", "a.JSONL", "a.TXT.GZ", "a.BIN"} {
		f := testutil.Must(describe(name, name, 1, ""))(t)
		require.True(t, f.readsOtherwise(), name)
	}
}
