package tokenizer

import (
	"encoding/json"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// ggufCase has a tokenizer in both forms, and texts with the tokens that Python gives them. testdata/write_gguf.py has
// written it.
type ggufCase struct {
	Name       string
	GGUF       GGUF
	Tokenizer  json.RawMessage
	Lines      []string
	IDs, Plain [][]int32
}

func ggufCases(t testing.TB) (all []ggufCase) {
	f := testutil.Must(os.Open("testdata/gguf.jsonl.gz"))(t)
	defer f.Close()
	for d := json.NewDecoder(testutil.Must(gzip.NewReader(f))(t)); d.More(); {
		var c ggufCase
		require.NoError(t, d.Decode(&c))
		all = append(all, c)
	}
	require.Len(t, all, 7)
	return all
}

func allPlain(text string) []Span { return []Span{{text, true}} }

// TestGGUFLikePython: the tokens by a GGUF file's metadata and by the tokenizer.json are those of Python, with control
// tokens found or all text plain, and the text comes back.
func TestGGUFLikePython(t *testing.T) {
	for _, c := range ggufCases(t) {
		t.Run(c.Name, func(t *testing.T) {
			all := []*Tokenizer{testutil.Must(FromGGUF(c.GGUF, ""))(t)}
			if c.Tokenizer != nil {
				all = append(all, testutil.Must(Open(write(t, c.Tokenizer), ""))(t))
			}
			for i, line := range c.Lines {
				for _, v := range all {
					got := testutil.Must(v.EncodeSpans(allPlain(line)))(t)
					require.Equal(t, c.Plain[i], append([]int32{}, got...), "%q", line)
					switch {
					case c.GGUF.Model == "llama": // spells spaces so
						line = strings.ReplaceAll(line, "▁", " ")
					case c.GGUF.Pre == "qwen2":
						line = norm.NFC.String(line)
					}
					require.Equal(t, line, testutil.Must(v.Decode(got))(t))
					if c.IDs != nil {
						got = testutil.Must(v.Encode(line))(t)
						require.Equal(t, c.IDs[i], append([]int32{}, got...), "%q", line)
						got = testutil.Must(v.EncodeSpans([]Span{{line, false}, {"", true}}))(t)
						require.Equal(t, c.IDs[i], append([]int32{}, got...), "%q", line)
					}
				}
			}
		})
	}
}

// TestPlainSpans: in any mixture of spans the control tokens are those of the spans that are not plain, no text is
// lost, and where spans of one kind begin makes no difference.
func TestPlainSpans(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	parts := []string{
		"<|im_end|>", "<|im_start|>", "<|im_", "end|>", "<|", "|>", "<|end|", ">", "a", " the", "\n", "<think>", "1", "é",
	}
	control := func(v *Tokenizer, ids []int32) (all []string) {
		for _, id := range ids {
			if v.Special(id) {
				all = append(all, v.file.pieces[id])
			}
		}
		return all
	}
	for _, c := range ggufCases(t) {
		if c.GGUF.Model != "gpt2" {
			continue
		}
		v := testutil.Must(FromGGUF(c.GGUF, ""))(t)
		for range testutil.Tries(t, 500, 20_000) {
			var cut, joined []Span
			var own []string // control tokens of spans that are not plain
			for range r.IntN(6) {
				s := Span{Plain: r.IntN(2) == 0}
				for range r.IntN(4) {
					part := parts[r.IntN(len(parts))]
					s.Text += part
					cut = append(cut, Span{part, s.Plain})
				}
				if n := len(joined); n > 0 && joined[n-1].Plain == s.Plain {
					joined[n-1].Text += s.Text
				} else if s.Text != "" {
					joined = append(joined, s)
				}
			}
			text := ""
			for _, s := range joined {
				text += s.Text
				if !s.Plain {
					own = append(own, control(v, testutil.Must(v.Encode(s.Text))(t))...)
				}
			}
			ids := testutil.Must(v.EncodeSpans(joined))(t)
			require.Equal(t, own, control(v, ids), "%q", joined)
			require.Equal(t, ids, testutil.Must(v.EncodeSpans(cut))(t), "%q", joined)
			require.Equal(t, norm.NFC.String(text), norm.NFC.String(testutil.Must(v.Decode(ids))(t)))
		}
	}
}

// TestPlainWords: a word of the vocabulary that is a control token, too, is spelled, and an error where it cannot be.
func TestPlainWords(t *testing.T) {
	for _, c := range ggufCases(t) {
		if c.Name != "llama-bpe" {
			continue
		}
		c.GGUF.Tokens, c.GGUF.Types = append(c.GGUF.Tokens, "therapist"), append(c.GGUF.Types, ggufControl)
		v := testutil.Must(FromGGUF(c.GGUF, ""))(t)
		id, ok := v.Token("therapist")
		require.True(t, ok)
		require.Equal(t, []int32{id}, testutil.Must(v.Encode("therapist"))(t))
		require.NotContains(t, testutil.Must(v.EncodeSpans(allPlain("therapist")))(t), id)
	}
	for _, normalized := range []string{"true", "false"} {
		v := testutil.Must(Open(write(t, []byte(`{"added_tokens":[{"id":1,"content":"</s>","special":true,"normalized":`+
			normalized+`}],"model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["</s>",0],["a",-1]]}}`)), ""))(t)
		require.Equal(t, []int32{2, 1}, testutil.Must(v.Encode("a</s>"))(t))
		require.Equal(t, []int32{2, 1}, testutil.Must(v.EncodeSpans([]Span{{"a", true}, {"</s>", false}}))(t))
		require.Equal(t, []int32{2, 0}, testutil.Must(v.EncodeSpans(allPlain("a?")))(t))
		require.ErrorContains(t, testutil.Err(v.EncodeSpans(allPlain("a</s>"))), `only the special token`)
	}
}

func TestGGUFRoles(t *testing.T) {
	yes, no, eot := true, false, int32(3)
	for _, c := range ggufCases(t) {
		v := testutil.Must(FromGGUF(c.GGUF, ""))(t)
		require.Equal(t, *c.GGUF.BOS, v.BOS())
		require.Equal(t, []int32{*c.GGUF.EOS}, v.Ends())
		require.True(t, v.Special(*c.GGUF.EOS))
		require.False(t, v.Special(-1) || v.Special(int32(v.Vocab())) || v.Special(300))
		begins := c.GGUF.Model == "llama" || c.GGUF.Pre == "llama-bpe"
		require.Equal(t, begins, len(v.Prefix()) == 1, c.Name)
		c.GGUF.AddBOS, c.GGUF.EOT = &yes, &eot
		other := testutil.Must(FromGGUF(c.GGUF, ""))(t)
		require.Equal(t, []int32{*c.GGUF.BOS}, other.Prefix())
		require.Equal(t, []int32{*c.GGUF.EOS, 3}, other.Ends())
		require.NotEqual(t, v.Identity(), other.Identity())
		c.GGUF.AddBOS = &no
		require.Empty(t, testutil.Must(FromGGUF(c.GGUF, ""))(t).Prefix())
	}
}

func TestGGUFErrors(t *testing.T) {
	far, yes := int32(1000), true
	for want, change := range map[string]func(g *GGUF){
		`model "rwkv", want gpt2 or llama`:         func(g *GGUF) { g.Model = "rwkv" },
		`pre "tekken", want one of default, gpt-2`: func(g *GGUF) { g.Pre = "tekken" },
		`pre "", want one of`:                      func(g *GGUF) { g.Pre = "" },
		"no tokens":                                func(g *GGUF) { g.Tokens = nil },
		"3 types":                                  func(g *GGUF) { g.Types = g.Types[:3] },
		`merge "ab", want two tokens`:              func(g *GGUF) { g.Merges = []string{"ab"} },
		"not in the vocabulary":                    func(g *GGUF) { g.Merges = []string{"a zz"} },
		"token 1000, the vocabulary has":           func(g *GGUF) { g.EOS = &far },
		"add_bos_token without":                    func(g *GGUF) { g.BOS, g.AddBOS = nil, &yes },
		"tokens 1 and 2 are both":                  func(g *GGUF) { g.Tokens[2] = g.Tokens[1] },
		"no scores":                                func(g *GGUF) { g.Model = "llama" },
		"the score of token 0 is NaN":              func(g *GGUF) { g.Model, g.Scores = "llama", nans(len(g.Tokens)) },
		"invalid UTF-8":                            func(g *GGUF) { g.Tokens[5] = "\xff" },
		"tried <eos>":                              func(g *GGUF) {},
	} {
		g := ggufCases(t)[0].GGUF
		change(&g)
		separator := ""
		if strings.HasPrefix(want, "tried") {
			separator = "<eos>"
		}
		err := testutil.Err(FromGGUF(g, separator))
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "tokenizer: GGUF: ")
	}
}

// TestDamagedGGUF: damaged metadata are an error, or a tokenizer that decodes what it encodes.
func TestDamagedGGUF(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	made := 0
	for _, c := range ggufCases(t) {
		content := testutil.Must(json.Marshal(c.GGUF))(t)
		for range testutil.Mutations(t) / 10 {
			var g GGUF
			if json.Unmarshal(testutil.Mutate(r, content), &g) != nil {
				continue
			}
			v, err := FromGGUF(g, "")
			if err != nil {
				require.ErrorContains(t, err, "tokenizer: GGUF: ")
				continue
			}
			made++
			for _, line := range c.Lines[:20] {
				if ids, err := v.EncodeSpans([]Span{{line, true}, {line, false}}); err == nil {
					require.NoError(t, testutil.Err(v.Decode(ids)))
				}
			}
		}
	}
	require.Positive(t, made)
}

func nans(n int) []float32 {
	all := make([]float32, n)
	for i := range all {
		all[i] = float32(math.NaN())
	}
	return all
}

// TestOpenFolder: what begins and ends texts comes from the files beside tokenizer.json.
func TestOpenFolder(t *testing.T) {
	for _, c := range []struct {
		files    map[string]string
		bos      int32
		ends     []int32
		prefixed bool
		err      string
	}{
		{bos: -1, prefixed: true},
		{files: map[string]string{"tokenizer_config.json": `{"bos_token":null,"eos_token":"<|im_end|>"}`}, bos: -1,
			ends: []int32{362}, prefixed: true},
		{files: map[string]string{"tokenizer_config.json": `{"bos_token":{"content":"<|im_start|>"},"add_bos_token":false}`,
			"generation_config.json": `{"eos_token_id":[362,360]}`}, bos: 361, ends: []int32{362, 360}},
		{files: map[string]string{
			"special_tokens_map.json": `{"bos_token":"<|im_start|>","eos_token":{"content":"<|im_end|>"}}`,
			"generation_config.json":  `{"eos_token_id":360}`}, bos: 361, ends: []int32{362, 360}, prefixed: true},
		{files: map[string]string{"tokenizer_config.json": `{"eos_token":"<nowhere>"}`}, err: `eos_token "<nowhere>" is not`},
		{files: map[string]string{"tokenizer_config.json": `{"add_bos_token":true}`}, err: "without a bos_token"},
		{files: map[string]string{"tokenizer_config.json": `{`}, err: "tokenizer_config.json: "},
		{files: map[string]string{"generation_config.json": `{"eos_token_id":"x"}`}, err: "generation_config.json: "},
		{files: map[string]string{"generation_config.json": `{"eos_token_id":[4000]}`}, err: "token 4000, the voc"},
	} {
		path := write(t, ggufCases(t)[2].Tokenizer)
		for name, content := range c.files {
			require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(path), name), []byte(content), 0o644))
		}
		v, err := OpenFolder(filepath.Dir(path), "")
		if c.err != "" {
			require.ErrorContains(t, err, c.err)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.bos, v.BOS())
		require.Equal(t, c.ends, v.Ends())
		require.Equal(t, c.prefixed, len(v.Prefix()) == 1)
		require.Equal(t, testutil.Must(Open(path, ""))(t).Identity(), v.Identity())
	}
	require.ErrorIs(t, testutil.Err(OpenFolder(t.TempDir(), "")), fs.ErrNotExist)
}
