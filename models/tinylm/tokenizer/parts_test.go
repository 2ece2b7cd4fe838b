package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// wordModel begins a model with a token for each word of its vocabulary.
const wordModel = `{"type":"BPE","ignore_merges":true,"fuse_unk":true,"merges":[],`

// wordTokenizer reads a tokenizer.json with a token for each of some words, and with the given members.
func wordTokenizer(t *testing.T, members map[string]string) (*huggingFace, error) {
	t.Helper()
	file := map[string]json.RawMessage{
		"pre_tokenizer": json.RawMessage(`{"type":"Whitespace"}`),
		"model": json.RawMessage(wordModel +
			`"unk_token":"[UNK]","vocab":{"[UNK]":0,"[SEP]":1,"small":2,"words":3}}`),
	}
	for name, value := range members {
		file[name] = json.RawMessage(value)
	}
	return parseHuggingFace(testutil.Must(json.Marshal(file))(t))
}

// A part that is not supported is an error that names it.
func TestTokenizerPartsRefused(t *testing.T) {
	split := func(pattern string) string {
		p, _ := json.Marshal(map[string]any{"Regex": pattern})
		return `{"type":"Split","invert":false,"behavior":"Isolated","pattern":` + string(p) + `}`
	}
	for _, c := range []struct{ member, value, want string }{
		{"normalizer", `{"type":"Precompiled","precompiled_charsmap":""}`,
			`normalizer: type "Precompiled", want one of BertNormalizer`},
		{"normalizer", `{"type":"Strip","strip_left":true,"strip_middle":true}`, `normalizer: Strip: `},
		{"normalizer", `{"type":"Replace","pattern":{},"content":""}`, "want one"},
		{"normalizer", `{"type":"Sequence"}`, "without normalizers"},
		{"normalizer", `{"type":"Sequence","normalizers":[null]}`, "null in a Sequence"},
		{"pre_tokenizer", `{"type":"UnicodeScripts"}`, `pre-tokenizer: type "UnicodeScripts", want one of BertPreTokenizer`},
		{"pre_tokenizer", `{"type":"Punctuation","behavior":"Odd"}`, `Punctuation: behavior "Odd", want Removed`},
		{"pre_tokenizer", `{"type":"Metaspace","replacement":"__"}`, `replacement "__", want one character`},
		{"pre_tokenizer", `{"type":"Metaspace","replacement":"_","prepend_scheme":"last"}`,
			`prepend_scheme "last", want always, first or never`},
		{"pre_tokenizer", `{"type":"CharDelimiterSplit","delimiter":"ab"}`, `delimiter "ab", want one character`},
		{"pre_tokenizer", split(`(a)\1`), `Split: pattern "(a)\\1": "\\1" is not supported`},
		{"normalizer", `{"type":"Replace","pattern":{"Regex":"a\\X"},"content":""}`,
			`pattern "a\\X": "\\X" is not supported`},
		{"pre_tokenizer", split("(?~ab)"), `"(?~" is not supported`},
		{"pre_tokenizer", split(`\p{Klingon}`), `the class of characters "Klingon" is not supported`},
		{"pre_tokenizer", split("(?i:ß)"), `"ß" without regard to case is not supported`},
		{"pre_tokenizer", split("(?i:stRaSSe)"), `"st" without regard to case is not supported`},
		{"pre_tokenizer", split("(?i:Ss)"), `"ss" without regard to case is not supported`},
		{"pre_tokenizer", split(`a\`), "it ends with"},
		{"model", `{"type":"BPE","dropout":0.1,"vocab":{"[SEP]":0},"merges":[]}`, "model: BPE: dropout of 0.1, want none"},
		{"model", `{"type":"BPE","vocab":{"[SEP]":0}}`, "no merges"},
		{"model", `{"type":"BPE","vocab":{"[SEP]":0},"merges":null}`, "no merges"},
		{"model", `{"type":"BPE","vocab":{"[SEP]":0,"b":null},"merges":[]}`, `within "/vocab/b": id null, want a number`},
		{"model", `{"type":"BPE","vocab":{"[SEP]":0,"b":1.5},"merges":[]}`, `within "/vocab/b": `},
		{"model", `{"type":"BPE","vocab":null,"merges":[]}`, "model: BPE: no vocab"},
		{"model", `{"type":"BPE","merges":[]}`, "model: BPE: no vocab"},
		{"model", `{"type":"WordLevel","vocab":{"[SEP]":0},"unk_token":""}`, `type "WordLevel", want one of BPE, Unigram`},
		{"model", `{"type":"WordPiece","vocab":{"[SEP]":0},"unk_token":""}`, `type "WordPiece", want one of BPE, Unigram`},
		{"model", `{"type":"Unigram","vocab":[["a",null]]}`, `["a",null], want a piece and its score`},
		{"model", `{"type":"Unigram","vocab":[[null,0]]}`, `[null,0], want a piece and its score`},
		{"model", `{"type":"Unigram","vocab":[]}`, "an empty vocabulary"},
		{"model", `{"type":"Unigram","vocab":[["a",0]],"unk_id":1}`, "unk_id 1, the vocabulary has 1"},
		{"model", `{"type":"Unigram","vocab":[["a"]]}`, "want a piece and its score"},
		{"model", `null`, "model: "},
		{"decoder", `{"type":"CTC","pad_token":"","word_delimiter_token":"","cleanup":true}`,
			`decoder: type "CTC", want one of BPEDecoder`},
		{"decoder", `{"type":"Strip","content":"ab","start":0,"stop":0}`, "want one character"},
		{"decoder", `{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"BPEDecoder","suffix":"</w>"}]}`,
			"BPEDecoder behind ByteFallback, want Fuse"},
		{"added_tokens", `[{"id":3,"content":"small"}]`, `added token "small" has the id 3, and 2 in the vocabulary`},
		{"added_tokens", `[{"id":null,"content":"[UNK]"}]`, `added token "[UNK]" without an id`},
		{"added_tokens", `[{"content":"[UNK]"}]`, `added token "[UNK]" without an id`},
		{"added_tokens", `[{"id":30000,"content":"more"}]`, "has the id 30000"},
	} {
		t.Run(c.member+" "+c.value, func(t *testing.T) {
			require.ErrorContains(t, testutil.Err(wordTokenizer(t, map[string]string{c.member: c.value})), c.want)
		})
	}
}

// TestTwoTokensOfOneID: two tokens of a vocabulary with one id are an error, always the same one. An added token may
// repeat a token of the vocabulary.
func TestTwoTokensOfOneID(t *testing.T) {
	for vocab, want := range map[string]string{
		`"[SEP]":0,"d":1,"c":2,"b":1,"a":2`: `tokens "a" and "c" have the same id 2`,
		`"a":0,"":0`:                        `tokens "" and "a" have the same id 0`,
	} {
		for range 8 { // the order of a map is random
			model := wordModel + `"vocab":{` + vocab + `}}`
			require.ErrorContains(t, testutil.Err(wordTokenizer(t, map[string]string{"model": model})), want)
		}
	}
	v := testutil.Must(wordTokenizer(t, map[string]string{
		"model": wordModel + `"vocab":{"a":0,"":3,"b":1}}`, "added_tokens": `[{"id":1,"content":"b"}]`,
	}))(t)
	require.Equal(t, []string{"a", "b", "", ""}, v.pieces)
}

// Text without a token is an error if there is no token for unknown text.
func TestTokenizerUnknownText(t *testing.T) {
	for name, model := range map[string]string{
		"bpe":     `{"type":"BPE","unk_token":"none","vocab":{"a":0},"merges":[]}`,
		"unigram": `{"type":"Unigram","unk_id":null,"vocab":[["a",0]]}`,
	} {
		t.Run(name, func(t *testing.T) {
			v := testutil.Must(wordTokenizer(t, map[string]string{"model": model}))(t)
			for range 2 { // the same encoder again
				require.ErrorContains(t, testutil.Err(v.encode(nil, []byte("a b"), nil)), `"b" has no token`)
				ids := testutil.Must(v.encode(nil, []byte("a a"), nil))(t)
				require.Equal(t, []int32{0, 0}, ids)
			}
		})
	}
}

// The error of a long pattern names its reason. A file cannot make tokenizing recurse deeply, nor compiling a pattern
// take long.
func TestLongParts(t *testing.T) {
	for pattern, want := range map[string]string{
		strings.Repeat("a?", 300) + `\X`: `"\\X" is not supported`,
		strings.Repeat("a", 65<<10):      "66560 bytes, want at most 65536",
	} {
		err := testutil.Err(newMatches(pattern))
		require.ErrorContains(t, err, want)
		require.Less(t, len(err.Error()), maxErrorBytes)
	}
	sequence := `{"type":"Sequence","pretokenizers":[` + strings.Repeat(`{"type":"Digits"},`,
		maxParts) + `{"type":"Digits"}]}`
	require.ErrorContains(t, testutil.Err(wordTokenizer(t, map[string]string{"pre_tokenizer": sequence})), "more than 256")
}

// Many added tokens, and a text of many of them with white space around, take no time that grows with the square of
// their number.
func TestManyAddedTokens(t *testing.T) {
	began, list := time.Now(), []map[string]any{{"id": 1, "content": "[SEP]", "lstrip": true, "rstrip": true}}
	for i := range 30_000 {
		list = append(list, map[string]any{"id": 4 + i, "content": fmt.Sprintf("<token %d>", i)})
	}
	v := testutil.Must(wordTokenizer(t, map[string]string{"added_tokens": string(testutil.Must(json.Marshal(list))(t))}))(t)
	ids := testutil.Must(v.encode(nil, []byte("<token 2><token 29999>"+strings.Repeat(" [SEP] small", 50_000)), nil))(t)
	require.Equal(t, []int32{6, 30_003, 1, 2, 1, 2}, ids[:6])
	require.Len(t, ids, 2+2*50_000)
	require.Less(t, time.Since(began), 10*time.Second)
}

// AppendToken gives the text that a token has inside a longer text.
func TestAppendTokenOfDecoders(t *testing.T) {
	for _, c := range []struct{ decoder, token, want string }{
		{`null`, "a", " a"},
		{`{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}`, "▁a", " a"},
		{`{"type":"BPEDecoder","suffix":"</w>"}`, "a</w>", "a "},
		{`{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}`, "▁a", " a"},
		{`{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Fuse"}]}`, "<0xE4>", "\xe4"},
		{`{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}`, "Ġa", " a"},
	} {
		model := wordModel + fmt.Sprintf(`"vocab":{%q:0}}`, c.token)
		v := testutil.Must(wordTokenizer(t, map[string]string{"decoder": c.decoder, "model": model}))(t)
		require.Equal(t, c.want, string(v.tokenizer().AppendToken(nil, 0)), "%s %s", c.decoder, c.token)
		require.Equal(t, len(c.want), v.tokenizer().TextLen([]int32{0}))
	}
}

// A pattern whose time doubles with each character of a text gives an error for that text, or for the file if the
// pattern is used on the tokens in the file. The tokenizer still works for other texts.
func TestSlowPatterns(t *testing.T) {
	const slow = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	replace := `{"type":"Replace","pattern":{"Regex":"(a|aa)*b"},"content":""}`
	for name, members := range map[string]map[string]string{
		"normalizer":    {"normalizer": replace},
		"pre-tokenizer": {"pre_tokenizer": `{"type":"Split","pattern":{"Regex":"(a|aa)*b"},"behavior":"Isolated","invert":false}`},
		"decoder":       {"decoder": `{"type":"Sequence","decoders":[{"type":"Fuse"},` + replace + `]}`},
		"token":         {"normalizer": replace, "added_tokens": `[{"id":4,"content":"` + slow + `","normalized":true}]`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			members["model"] = wordModel + `"unk_token":"[UNK]","vocab":{"[UNK]":0,"[SEP]":1,"aaaaaaaaaa":2,"small":3}}`
			began := time.Now()
			v, err := wordTokenizer(t, members)
			if err == nil {
				_, err = v.encode(nil, []byte(slow), nil)
			}
			if err == nil {
				_, err = v.decode([]int32{2, 2, 2, 2})
			}
			require.ErrorContains(t, err, `pattern "(a|aa)*b" takes more than 1.0004s for a text of 40 bytes`)
			require.Less(t, time.Since(began), time.Minute)
			if v != nil {
				ids := testutil.Must(v.encode(nil, []byte("small"), nil))(t)
				require.Equal(t, []int32{3}, ids)
				require.Equal(t, "small", testutil.Must(v.decode(ids))(t))
			}
		})
	}
}

// A pattern that is slow for each word of a text, or for each token of the file, is an error, too.
func TestSlowPatternsOfManyWords(t *testing.T) {
	slow := strings.Repeat("a", 24)
	split := `{"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},{"type":"Split","pattern":{"Regex":"(a|aa)*b"},"behavior":"Isolated","invert":false}]}`
	v := testutil.Must(wordTokenizer(t, map[string]string{"pre_tokenizer": split}))(t)
	began := time.Now()
	err := testutil.Err(v.encode(nil, []byte(strings.Repeat(slow+" ", 10_000)), nil))
	require.ErrorContains(t, err, `pattern "(a|aa)*b" takes `)
	require.ErrorContains(t, err, `it backtracks too much`) // for all words, or on a slow machine for one
	require.Less(t, time.Since(began), time.Minute)
	require.Equal(t, []int32{2, 3}, testutil.Must(v.encode(nil, []byte("small words"), nil))(t))
}

// TestDecodesLikePython: an empty Sequence of decoders puts no spaces between tokens, and an empty match right behind
// another match is none. What is wanted is what tokenizers 0.23.3 returns.
func TestDecodesLikePython(t *testing.T) {
	for _, c := range []struct{ decoder, want string }{
		{"null", "small words"},
		{`{"type":"Sequence","decoders":[]}`, "smallwords"},
		{`{"type":"Replace","pattern":{"Regex":"s*"},"content":"-"}`, "-m-a-l-l--w-o-r-d-"},
	} {
		v := testutil.Must(wordTokenizer(t, map[string]string{"decoder": c.decoder}))(t)
		require.Equal(t, c.want, testutil.Must(v.decode([]int32{2, 3}))(t), c.decoder)
	}
}
