package tokenizer

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// FuzzFile: see requireHarmless.
func FuzzFile(f *testing.F) {
	for _, c := range smallTokenizers(f) {
		f.Add([]byte(c.Tokenizer), "Some text, 12 größer\n\n THE of [MASK]")
	}
	f.Add([]byte(`{"model":{"type":"Unigram","vocab":[["a",-1e308],["aa",1e308],["<unk>",0]],"unk_id":2}}`), "aab")
	path := filepath.Join(f.TempDir(), "tokenizer.json")
	f.Fuzz(func(t *testing.T, file []byte, text string) { _ = requireHarmless(t, path, file, []string{text}) })
}

// FuzzRoundTrip: a byte-level tokenizer without a normalizer, whose vocabulary has each byte, loses nothing of a text,
// however it cuts words.
func FuzzRoundTrip(f *testing.F) {
	var all []*Tokenizer
	for _, c := range smallTokenizers(f) {
		if !slices.Contains([]string{"gpt2", "llama3", "qwen", "other", "digits"}, c.Name) {
			continue
		}
		var cuts, file map[string]json.RawMessage
		require.NoError(f, json.Unmarshal(c.Tokenizer, &cuts))
		require.NoError(f, json.Unmarshal(smallTokenizer(f), &file))
		file["pre_tokenizer"] = cuts["pre_tokenizer"]
		v := testutil.Must(parseHuggingFace(testutil.Must(json.Marshal(file))(f)))(f)
		all = append(all, v.tokenizer())
	}
	require.Len(f, all, 5)
	f.Add("Some text, 12 größer\n\n THE of <|endoftext|>")
	f.Add("\u0000\ufeff\ufffd\r\n'S 'ſ \U0010ffff")
	f.Fuzz(func(t *testing.T, text string) {
		for _, v := range all {
			ids, err := v.Encode(text)
			if !utf8.ValidString(text) {
				require.ErrorContains(t, err, "not UTF-8")
				continue
			}
			require.NoError(t, err)
			decoded := testutil.Must(v.Decode(ids))(t)
			require.Equal(t, text, decoded)
			require.Equal(t, text, string(appendTokens(v, ids)))
			require.Equal(t, len(text), v.TextLen(ids))
		}
	})
}
