package corpus

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/klauspost/compress/gzip"
	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// smallTokenizer is a tokenizer of the kind of Llama 3 with three merges.
func smallTokenizer(t testing.TB) []byte {
	t.Helper()
	vocab := map[string]int{}
	for r, b := range newLetters().bytes {
		vocab[string(r)] = int(b)
	}
	for i, word := range []string{"te", "xt", "text"} {
		vocab[word] = 256 + i
	}
	b, err := json.Marshal(map[string]any{
		"added_tokens": []any{map[string]any{"id": 259, "content": "<|endoftext|>", "special": true}},
		"pre_tokenizer": map[string]any{"type": "Sequence", "pretokenizers": []any{
			map[string]any{"type": "Split", "pattern": map[string]any{"Regex": llama3Start + "{1,3}" + llama3End}, "behavior": "Isolated"},
			map[string]any{"type": "ByteLevel", "use_regex": false},
		}},
		"model": map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{"t e", "x t", "te xt"}},
	})
	require.NoError(t, err)
	return b
}

func appendTokens(t *Tokenizer, ids []int32) (text []byte) {
	for _, id := range ids {
		text = t.AppendToken(text, id)
	}
	return text
}

func TestTokenizer(t *testing.T) {
	documents := makeDocuments(200, 300, 4)
	folder := writeFiles(t, map[string][]byte{"tokenizer.json": smallTokenizer(t), "data/a.jsonl": jsonl(t, documents)})
	c := open(t, filepath.Join(folder, "data"), Options{Tokenizer: filepath.Join(folder, "tokenizer.json"), HeldOut: 1 << 20}, 1<<20)
	require.Equal(t, 260, c.Vocab())
	require.EqualValues(t, 259, c.Separator())
	ids, err := c.Encode("a text<|endoftext|>")
	require.NoError(t, err)
	require.Equal(t, []int32{'a', ' ', 258, 259}, ids)
	for _, d := range documents {
		ids, err := c.Encode(d)
		require.NoError(t, err)
		text, err := c.Decode(ids)
		require.NoError(t, err)
		require.Equal(t, d, text)
	}
	alone := testutil.Must(NewTokenizer(Options{Tokenizer: filepath.Join(folder, "tokenizer.json")}))(t)
	require.Equal(t, []any{260, int32(259), ids}, []any{alone.Vocab(), alone.Separator(), testutil.Must(alone.Encode("a text<|endoftext|>"))(t)})
	require.Equal(t, "a text<|endoftext|>", string(appendTokens(alone, ids)))
	require.Empty(t, appendTokens(alone, []int32{-1, 260}))
	_, err = c.Decode([]int32{260})
	require.EqualError(t, err, "corpus: decode: token 260 at 0, the vocabulary has 260")
	_, err = c.Encode("\xff")
	require.ErrorContains(t, err, "not UTF-8")
	batches, err := c.HeldOut(Shape{Batch: 1, Seq: 1 << 20}, 0)
	require.NoError(t, err)
	tokens, bytes := 0, 0
	for _, id := range batches[0].Tokens[:batches[0].Targeted] {
		if id != c.Separator() {
			text, err := c.Decode([]int32{id})
			require.NoError(t, err)
			tokens, bytes = tokens+1, bytes+len(text)
		}
	}
	require.Equal(t, float64(bytes)/float64(tokens), c.BytesPerToken())

	// The same tokens from a file.
	ids = nil
	for _, d := range documents {
		tokens, err := c.Encode(d)
		require.NoError(t, err)
		ids = append(append(ids, tokens...), c.Separator())
	}
	path := filepath.Join(writeFiles(t, map[string][]byte{"a.npy": numpyBytes(ids, 4)}), "a.npy")
	fromTokens := open(t, path, Options{Tokenizer: filepath.Join(folder, "tokenizer.json"), HeldOut: 1 << 20}, 1<<20)
	require.InDelta(t, c.BytesPerToken(), fromTokens.BytesPerToken(), 0.1)
	s := Shape{Batch: 1, Seq: 1 << 20}
	var all [2][]string
	for i, c := range []*Corpus{c, fromTokens} {
		held, err := c.HeldOut(s, 0)
		require.NoError(t, err)
		for _, b := range append(epochOf(t, c, s, Cursor{}), held...) {
			text, err := c.Decode(b.Tokens[:b.Targeted])
			require.NoError(t, err)
			all[i] = append(all[i], strings.Split(text, "<|endoftext|>")...)
		}
	}
	require.Equal(t, sorted(documents), sorted(all[0]))
	require.Equal(t, sorted(documents), sorted(all[1]))
}

// The ids are those of Python's tokenizers, except for characters that are newer than Go's Unicode tables.
func TestTokenizersMatchPython(t *testing.T) {
	testutil.Python(t, "tokenizers")
	folder := t.TempDir()
	out, err := exec.Command("python3", "testdata/train_tokenizers.py", folder).CombinedOutput()
	require.NoError(t, err, string(out))
	var lines []string
	readJSON(t, filepath.Join(folder, "lines.json"), &lines)
	compared := len(lines)
	for _, line := range lines {
		if isNew(line) {
			compared--
		}
	}
	require.Greater(t, compared, 9900)
	var names []string
	readJSON(t, filepath.Join(folder, "names.json"), &names)
	require.Greater(t, len(names), 30)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, err := readHuggingFace(filepath.Join(folder, name+".json"), "")
			require.NoError(t, err)
			var want [][]int32
			var texts []string
			readJSON(t, filepath.Join(folder, name+".ids.json"), &want)
			readJSON(t, filepath.Join(folder, name+".text.json"), &texts)
			requireSame(t, v, tokenizerCase{Lines: lines, IDs: want, Texts: texts})
		})
	}
}

// tokenizerCase is a tokenizer, lines, and the results of Python for these.
type tokenizerCase struct {
	Name      string
	Tokenizer json.RawMessage
	Lines     []string
	IDs       [][]int32
	Texts     []string // Python's decoding of the ids
}

func requireSame(t *testing.T, v *huggingFace, want tokenizerCase) {
	for i, line := range want.Lines {
		if isNew(line) {
			continue
		}
		got, err := v.encode(nil, []byte(line))
		require.NoError(t, err)
		require.Equal(t, want.IDs[i], append([]int32{}, got...), "%q", line)
		text, err := v.decode(got)
		require.NoError(t, err)
		if utf8.ValidString(text) { // Python replaces bytes that are not UTF-8
			require.Equal(t, want.Texts[i], text, "%q", line)
		}
	}
}

// isNew reports whether a line has characters that are newer than Go's Unicode tables.
func isNew(line string) bool {
	return strings.ContainsFunc(line, func(r rune) bool { return unicode.Is(unicode.Cn, r) })
}

// smallTokenizers returns tokenizers of every kind, written by train_tokenizers.py.
func smallTokenizers(t *testing.T) (all []tokenizerCase) {
	f, err := os.Open("testdata/tokenizers.jsonl.gz")
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	for d := json.NewDecoder(z); d.More(); {
		var c tokenizerCase
		require.NoError(t, d.Decode(&c))
		all = append(all, c)
	}
	return all
}

// The ids are those of Python's tokenizers.
func TestSmallTokenizers(t *testing.T) {
	all := smallTokenizers(t)
	require.Greater(t, len(all), 40)
	for _, c := range all {
		t.Run(c.Name, func(t *testing.T) {
			v, err := parseHuggingFace(c.Tokenizer)
			require.NoError(t, err)
			requireSame(t, v, c)
		})
	}
}

// The scanner cuts like the regular expressions that it replaces.
func TestScannerMatchesPattern(t *testing.T) {
	lines := append(makeDocuments(300, 200, 7), "'s", "'S", "'ſ", "'lL'", " '", "\r\n \n", "  a", " \t b", "!\r\n!", "12345", "x\u00a0\u3000y", "½Ⅷ", "a\u0301")
	for pattern, s := range map[string]scanner{gpt2Pattern: {gpt2: true}, llama3Start + "{1,3}" + llama3End: {digits: 3}, llama3Start + llama3End: {digits: 1}} {
		m, err := newMatches(pattern)
		require.NoError(t, err)
		for _, line := range lines {
			require.Equal(t, words(isolated.splitter(m.find), line), words(s.split, line), "%q %s", line, pattern)
		}
	}
}

func words(s splitter, text string) []string {
	var all []string
	s([]byte(text), func(word []byte) { all = append(all, string(word)) })
	return all
}

func TestTokenizerErrors(t *testing.T) {
	good := string(smallTokenizer(t))
	for name, c := range map[string]struct{ old, new, separator, want string }{
		"no separator":    {"|endoftext|", "|other|", "", "no end-of-document token"},
		"other separator": {"", "", "<end>", "tried <end>"},
		"other model":     {`"BPE"`, `"RNN"`, "", `model: type "RNN", want one of BPE, Unigram, WordLevel, WordPiece`},
		"strange option":  {`"merges"`, `"beam":1,"merges"`, "", `unknown object member name "beam"`},
		"unknown merge":   {"te xt", "te xx", "", "not in the vocabulary"},
		"missing letter":  {`"e":101,`, "", "", "not in the vocabulary"},
		"huge id":         {`"te":256`, `"te":2000000000`, "", "has the id 2000000000"},
		"no JSON":         {`"model"`, `model`, "", "invalid character"},
		"early ByteLevel": {`"pretokenizers":[`, `"pretokenizers":[{"type":"ByteLevel"},`, "", "want ByteLevel in the end"},
		"bad pattern":     {"(?i:", "(((", "", "pattern"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(good, c.old, c.new, 1)
			if c.old != "" {
				require.NotEqual(t, good, text)
			}
			folder := writeFiles(t, map[string][]byte{"t.json": []byte(text), "a.txt": []byte("text")})
			path := filepath.Join(folder, "t.json")
			_, err := Open(t.Context(), filepath.Join(folder, "a.txt"), Options{Tokenizer: path, Separator: c.separator})
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, path)
		})
	}
}

func readJSON(t *testing.T, path string, to any) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, to))
}
