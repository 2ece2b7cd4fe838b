package tokenizer

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/klauspost/compress/gzip"
	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// smallTokenizer is a tokenizer of the kind of Llama 3 with three merges.
func smallTokenizer(t testing.TB) []byte {
	t.Helper()
	var file map[string]any
	require.NoError(t, json.Unmarshal(testutil.Must(testutil.Tokenizer("t e", "x t", "te xt"))(t), &file))
	pattern := map[string]any{"Regex": llama3Start + "{1,3}" + llama3End}
	file["pre_tokenizer"] = map[string]any{"type": "Sequence", "pretokenizers": []any{
		map[string]any{"type": "Split", "pattern": pattern, "behavior": "Isolated"},
		map[string]any{"type": "ByteLevel", "use_regex": false},
	}}
	return testutil.Must(json.Marshal(file))(t)
}

func appendTokens(t *Tokenizer, ids []int32) (text []byte) {
	for _, id := range ids {
		text = t.AppendToken(text, id)
	}
	return text
}

// write writes a tokenizer.json and returns the path.
func write(t testing.TB, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokenizer.json")
	require.NoError(t, os.WriteFile(path, content, 0o644))
	return path
}

func TestTokenizer(t *testing.T) {
	v := testutil.Must(Open(write(t, smallTokenizer(t)), ""))(t)
	require.Equal(t, 260, v.Vocab())
	require.EqualValues(t, 259, v.Separator())
	ids := testutil.Must(v.Encode("a text<|endoftext|>"))(t)
	require.Equal(t, []int32{'a', ' ', 258, 259}, ids)
	require.Equal(t, append([]int32{7}, ids...), testutil.Must(v.AppendEncode([]int32{7},
		[]byte("a text<|endoftext|>")))(t))
	require.Equal(t, "a text<|endoftext|>", string(appendTokens(v, ids)))
	require.Equal(t, len("a text<|endoftext|>"), v.TextLen(ids))
	require.Empty(t, appendTokens(v, []int32{-1, 260}))
	for _, d := range testutil.Documents(200, 300, 4) {
		require.Equal(t, d, testutil.Must(v.Decode(testutil.Must(v.Encode(d))(t)))(t))
	}
	require.ErrorContains(t, testutil.Err(v.Decode([]int32{260})), "tokenizer: decode: token 260 at 0")
	require.ErrorContains(t, testutil.Err(v.Encode("\xff")), "tokenizer: encode: text is not UTF-8")
}

// TestTokenizersWithoutFile: bytes, and numbers that are not made from text.
func TestTokenizersWithoutFile(t *testing.T) {
	text := "Größe\xff\n"
	for identity, v := range map[string]*Tokenizer{"bytes": testutil.Must(Open("", ""))(t),
		"numbers 300 -1": Numbers(300, -1)} {
		require.Equal(t, identity, v.Identity())
		ids := testutil.Must(v.Encode(text))(t)
		require.Equal(t, text, testutil.Must(v.Decode(ids))(t))
		require.Equal(t, text, string(appendTokens(v, append(ids, -1, 299))))
		require.Equal(t, len(text), v.TextLen(ids))
		require.ErrorContains(t, testutil.Err(v.Decode([]int32{65, 256})), "token 256 at 1")
	}
	require.ErrorContains(t, testutil.Err(Numbers(65, 0).Encode("@A")), "byte 65 at 1")
	require.ErrorContains(t, testutil.Err(Open("", "<end>")), `"<end>"`)
}

// TestZeroTokenizer: a tokenizer that nothing has opened has no tokens.
func TestZeroTokenizer(t *testing.T) {
	for _, v := range []*Tokenizer{nil, {}} {
		require.Zero(t, v.Vocab())
		require.EqualValues(t, -1, v.Separator())
		require.Empty(t, v.Identity())
		require.Zero(t, v.TextLen([]int32{65}))
		require.Equal(t, "a", string(v.AppendToken([]byte("a"), 65)))
		require.ErrorContains(t, testutil.Err(v.Encode("a")), "encode: the tokenizer is not one of Open")
		require.ErrorContains(t, testutil.Err(v.Decode([]int32{65})), "decode: the tokenizer is not one of Open")
	}
}

// The ids are those of Python's tokenizers, except for characters that are newer than Go's Unicode tables.
func TestTokenizersMatchPython(t *testing.T) {
	testutil.RequirePython(t, "tokenizers")
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
			v := testutil.Must(readHuggingFace(filepath.Join(folder, name+".json"), ""))(t)
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
		got := testutil.Must(v.encode(nil, []byte(line), nil))(t)
		require.Equal(t, want.IDs[i], append([]int32{}, got...), "%q", line)
		text := testutil.Must(v.decode(got))(t)
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
func smallTokenizers(t testing.TB) (all []tokenizerCase) {
	f := testutil.Must(os.Open("testdata/tokenizers.jsonl.gz"))(t)
	defer f.Close()
	z := testutil.Must(gzip.NewReader(f))(t)
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
			v := testutil.Must(parseHuggingFace(c.Tokenizer))(t)
			requireSame(t, v, c)
		})
	}
}

// The scanner cuts like the regular expressions that it replaces.
func TestScannerMatchesPattern(t *testing.T) {
	lines := append(testutil.Documents(300, 200, 7), "'s", "'S", "'ſ", "'lL'", " '", "\r\n \n", "  a", " \t b",
		"!\r\n!", "12345", "x\u00a0\u3000y", "½Ⅷ", "a\u0301")
	for pattern, s := range map[string]scanner{
		gpt2Pattern: gpt2Scanner(), llama3Start + "{1,3}" + llama3End: {digits: 3}, llama3Start + llama3End: {digits: 1},
	} {
		m := testutil.Must(newMatches(pattern))(t)
		for _, line := range lines {
			require.Equal(t, words(isolated.splitter(m.find, false), line), words(s.split, line), "%q %s", line, pattern)
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
		"other model":     {`"BPE"`, `"RNN"`, "", `model: type "RNN", want one of BPE, Unigram`},
		"strange option":  {`"merges"`, `"beam":1,"merges"`, "", `unknown object member name "beam"`},
		"unknown merge":   {"te xt", "te xx", "", "not in the vocabulary"},
		"missing letter":  {`"e":101,`, "", "", "not in the vocabulary"},
		"huge id":         {`"te":256`, `"te":2000000000`, "", "has the id 2000000000"},
		"no JSON":         {`"model"`, `model`, "", "invalid character"},
		"bad pattern":     {"(?i:", "(((", "", "pattern"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(good, c.old, c.new, 1)
			if c.old != "" {
				require.NotEqual(t, good, text)
			}
			path := write(t, []byte(text))
			err := testutil.Err(Open(path, c.separator))
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "tokenizer: "+path+": ")
		})
	}
}

func readJSON(t *testing.T, path string, to any) {
	t.Helper()
	b := testutil.Must(os.ReadFile(path))(t)
	require.NoError(t, json.Unmarshal(b, to))
}

// The form of a text with many marks equals that of the library, for texts below the library's limit.
func TestNormalizeLong(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	letters := []rune("aeoAq ﬁ①가각힣각日ⅷǖṩ\u0301\u0308\u0323\u0327\u0345\u0300\u05b0\u093c\u0958\u0f71\u0344Å")
	for _, f := range []norm.Form{norm.NFC, norm.NFD, norm.NFKC, norm.NFKD} {
		for range 5000 {
			var text strings.Builder
			for range r.IntN(12) {
				text.WriteRune(letters[r.IntN(len(letters))])
			}
			require.Equal(t, f.String(text.String()), normalizeLong(f, text.String()), "%d %+q", f, text.String())
		}
	}
	marks := strings.Repeat("\u0301\u0323", 40)
	require.Equal(t, "\u1ea1"+strings.Repeat("\u0323", 39)+strings.Repeat("\u0301", 40), form(norm.NFC)("a"+marks))
}

// BenchmarkTokenizer encodes words, most of which repeat. TOKENIZER names another tokenizer.json, TEXT another text.
func BenchmarkTokenizer(b *testing.B) {
	text := []byte(strings.Join(testutil.Documents(400, 4<<10, 1), "\n"))
	t := testutil.Must(parseHuggingFace(smallTokenizer(b)))(b)
	if path := os.Getenv("TOKENIZER"); path != "" {
		t = testutil.Must(readHuggingFace(path, ""))(b)
	}
	if path := os.Getenv("TEXT"); path != "" {
		text = testutil.Must(os.ReadFile(path))(b)
	}
	b.SetBytes(int64(len(text)))
	var ids []int32
	for b.Loop() {
		ids = testutil.Must(t.encode(ids[:0], text, nil))(b)
	}
	b.ReportMetric(float64(len(ids))*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mtokens/s")
}

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
