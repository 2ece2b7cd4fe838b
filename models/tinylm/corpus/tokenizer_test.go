package corpus

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// smallTokenizer returns a tokenizer.json of the bytes and three merges.
func smallTokenizer(t testing.TB) []byte {
	t.Helper()
	return testutil.Must(testutil.Tokenizer("t e", "x t", "te xt"))(t)
}

// wordTokenizer returns a tokenizer.json with a token for each word of its vocabulary.
func wordTokenizer(members string) []byte {
	const start = `{"pre_tokenizer":{"type":"Whitespace"},"model":{"type":"BPE","ignore_merges":true,"fuse_unk":true,"merges":[],`
	return []byte(start + members + "}}")
}

// TestCorpusWithTokenizer: text, and a file of its tokens, give the same documents.
func TestCorpusWithTokenizer(t *testing.T) {
	documents := testutil.Documents(200, 300, 4)
	folder := writeFiles(t, map[string][]byte{"tokenizer.json": smallTokenizer(t), "data/a.jsonl": jsonl(t, documents)})
	o, s := Options{Tokenizer: filepath.Join(folder, "tokenizer.json"), HeldOut: 1 << 20}, Shape{Batch: 1, Seq: 1 << 20}
	c := open(t, filepath.Join(folder, "data"), o, 1<<20)
	require.Equal(t, 260, c.Vocab())
	require.EqualValues(t, 259, c.Separator())
	tokens, bytes := 0, 0
	held := testutil.Must(c.HeldOut(s, 0))(t)[0]
	for _, id := range held.Tokens[:held.Targeted] {
		if id != c.Separator() {
			tokens, bytes = tokens+1, bytes+len(testutil.Must(c.Decode([]int32{id}))(t))
		}
	}
	require.Equal(t, float64(bytes)/float64(tokens), c.BytesPerToken())

	var ids []int32
	for _, d := range documents {
		ids = append(append(ids, testutil.Must(c.Encode(d))(t)...), c.Separator())
	}
	path := filepath.Join(writeFiles(t, map[string][]byte{"a.npy": numpyBytes(ids, 4)}), "a.npy")
	fromTokens := open(t, path, o, 1<<20)
	require.InDelta(t, c.BytesPerToken(), fromTokens.BytesPerToken(), 0.1)
	for _, c := range []*Corpus{c, fromTokens} {
		var all []string
		for _, b := range append(epochOf(t, c, s, Cursor{}), testutil.Must(c.HeldOut(s, 0))(t)...) {
			text := testutil.Must(c.Decode(b.Tokens[:b.Targeted]))(t)
			all = append(all, strings.Split(text, "<|endoftext|>")...)
		}
		require.Equal(t, sorted(documents), sorted(all))
	}
}

// BytesPerToken counts the bytes of a document, not those of the text of its tokens.
func TestBytesPerTokenOfLossyTokenizer(t *testing.T) {
	var documents []string
	for i := range 400 {
		// 22 bytes; the tokens are small and four unknown ones
		documents = append(documents, fmt.Sprintf("%03d small   unheard-of", i))
	}
	words := wordTokenizer(`"unk_token":"[UNK]","vocab":{"[UNK]":0,"[SEP]":1,"small":2}`)
	folder := writeFiles(t, map[string][]byte{"tokenizer.json": words, "data/a.jsonl": jsonl(t, documents)})
	c := open(t, filepath.Join(folder, "data"), Options{Tokenizer: filepath.Join(folder, "tokenizer.json"),
		HeldOut: 1 << 20}, 1<<20)
	require.Equal(t, 22.0/5, c.BytesPerToken())
}

// TestTokenizerErrors: the error of a tokenizer names it, and so does that of a text which it can not encode.
func TestTokenizerErrors(t *testing.T) {
	words := wordTokenizer(`"unk_token":"none","vocab":{"[SEP]":0,"small":1}`)
	folder := writeFiles(t, map[string][]byte{"t.json": words, "bad.json": []byte("{"), "a.txt": []byte("small text"),
		"b.txt": []byte("more")})
	for name, want := range map[string]string{
		"bad.json": "corpus: " + filepath.Join(folder, "bad.json") + ": ",
		"t.json":   ".txt: encode: ",
	} {
		require.ErrorContains(t, openError(t, folder, Options{Ext: ".txt", Tokenizer: filepath.Join(folder, name),
			HeldOut: 100}), want)
	}
}
