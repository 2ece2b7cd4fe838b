package tokenizer

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/quote"
)

// GGUF is what the metadata of a GGUF file say about its tokenizer, in members called tokenizer.ggml.*. Ids and flags
// that the file does not have are nil.
type GGUF struct {
	Model          string    // model: gpt2, byte-level BPE, or llama, BPE of SentencePiece
	Pre            string    // pre: how gpt2 cuts words
	Tokens         []string  // tokens
	Types          []int32   // token_type, of each token; nil: all are normal
	Merges         []string  // merges, of gpt2
	Scores         []float32 // scores, of llama
	BOS            *int32    // bos_token_id
	EOS            *int32    // eos_token_id
	EOT            *int32    // eot_token_id: it ends a turn
	Unknown        *int32    // unknown_token_id
	AddBOS         *bool     // add_bos_token
	AddSpacePrefix *bool     // add_space_prefix, of llama
}

// The types of tokens, of which 1 is normal, 5 unused and 6 a byte.
const (
	ggufUnknown     = 2
	ggufControl     = 3
	ggufUserDefined = 4
)

// cutting is a kind of words, as in the tokenizer.json of the models that have it.
type cutting struct {
	normalizer, words string
	wholeWords        bool // a word of the vocabulary needs no merges
	addBOS            bool // unless the file says otherwise
}

// cuttings returns the kinds of words by name: of SmolLM2, GPT-2, Llama 3 and Qwen2, and llama.cpp's for files without.
func cuttings() map[string]cutting {
	const byteLevel = `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":`
	split := func(patterns ...string) string {
		steps := ""
		for _, p := range patterns {
			quoted, _ := jsontext.AppendQuote(nil, p) // constants, which are UTF-8
			steps += fmt.Sprintf(`{"type":"Split","pattern":{"Regex":%s},"behavior":"Isolated","invert":false},`, quoted)
		}
		return `{"type":"Sequence","pretokenizers":[` + steps + byteLevel + `false}]}`
	}
	llama3 := cutting{words: split(llama3Start + `{1,3}` + llama3End), wholeWords: true, addBOS: true}
	return map[string]cutting{
		"smollm": {words: `{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},` +
			byteLevel + `true}]}`},
		"gpt-2":     {words: byteLevel + `true}`},
		"llama-bpe": llama3, "llama3": llama3, "llama-v3": llama3,
		"qwen2":   {words: split(llama3Start + llama3End), normalizer: `{"type":"NFC"}`},
		"default": {words: split(`[\p{P}\$\+<=>\^~\|]+`, gpt2Pattern, `\p{N}+`, `[0-9][0-9][0-9]`)},
	}
}

// FromGGUF returns the tokenizer of a GGUF file. Control tokens and the unknown token are its special ones. separator
// is as for Open, and the last resort is EOS. With gpt2 a text has the tokens of the tokenizer.json of SmolLM2, GPT-2,
// Llama 3 or Qwen2, as pre says, with llama those of SentencePiece. Other models and values of pre are errors.
func FromGGUF(g GGUF, separator string) (_ *Tokenizer, err error) {
	defer func() { err = fault.In("tokenizer", "GGUF", quote.Error(err)) }()
	if len(g.Tokens) == 0 {
		return nil, errors.New("no tokens")
	}
	if len(g.Types) != 0 && len(g.Types) != len(g.Tokens) || len(g.Scores) != 0 && len(g.Scores) != len(g.Tokens) {
		return nil, fmt.Errorf("%d tokens, and %d types and %d scores, want as many or none",
			len(g.Tokens), len(g.Types), len(g.Scores))
	}
	f, model, addBOS, err := g.parts()
	if err != nil {
		return nil, err
	}
	f.AddedTokens = g.added()
	t, err := newHuggingFace(f, model)
	if err != nil {
		return nil, err
	}
	content, err := json.Marshal(g) // an error if a token is not UTF-8
	if err != nil {
		return nil, err
	}
	t.hash = sha256.Sum256(content)
	if g.AddBOS != nil {
		addBOS = *g.AddBOS
	}
	if err := g.setRoles(t, addBOS); err != nil {
		return nil, err
	}
	if err := t.findSeparator(separator); err != nil {
		return nil, err
	}
	return t.tokenizer(), nil
}

func (g GGUF) setRoles(t *huggingFace, addBOS bool) error {
	for _, id := range []*int32{g.BOS, g.EOS, g.EOT, g.Unknown} {
		if id != nil {
			if err := t.checkID(*id); err != nil {
				return fmt.Errorf("an id of bos, eos, eot or unknown: %w", err)
			}
		}
	}
	for _, id := range []*int32{g.EOS, g.EOT} {
		if id != nil && !slices.Contains(t.ends, *id) {
			t.ends = append(t.ends, *id)
		}
	}
	if g.BOS != nil {
		t.bos = *g.BOS
		if addBOS {
			t.prefix = []int32{*g.BOS}
		}
	} else if g.AddBOS != nil && addBOS {
		return errors.New("add_bos_token without bos_token_id")
	}
	return nil
}

func (g GGUF) kind(id int) int32 {
	if len(g.Types) == 0 {
		return 1
	}
	return g.Types[id]
}

// added returns the tokens that are found in a text before the model gets it.
func (g GGUF) added() (all []addedFile) {
	for id, text := range g.Tokens {
		kind := g.kind(id)
		if text != "" && (kind == ggufControl || kind == ggufUserDefined || kind == ggufUnknown) {
			all = append(all, addedFile{ID: &id, Content: text, Special: kind != ggufUserDefined})
		}
	}
	return all
}

// table returns the vocabulary of the model: control tokens have no id there, so that no word becomes one.
func (g GGUF) table() (t tokenTable, err error) {
	t = tokenTable{ids: make(map[string]int32, len(g.Tokens)), texts: g.Tokens}
	for id, text := range g.Tokens {
		if g.kind(id) == ggufControl || text == "" {
			continue
		}
		if other, ok := t.ids[text]; ok {
			return t, fmt.Errorf("tokens %d and %d are both %q", other, id, text)
		}
		t.ids[text] = int32(id)
	}
	return t, nil
}

// parts returns what a tokenizer.json would say, and the model.
func (g GGUF) parts() (f tokenizerFile, model subwordModel, addBOS bool, err error) {
	t, err := g.table()
	if err != nil {
		return f, nil, false, err
	}
	m := &bpe{tokenTable: t}
	switch g.Model {
	case "gpt2":
		c, err := find("pre", g.Pre, cuttings())
		if err != nil {
			return f, nil, false, err
		}
		pairs, err := cutMerges(g.Merges)
		if err != nil {
			return f, nil, false, err
		}
		f = tokenizerFile{PreTokenizer: jsontext.Value(c.words), Normalizer: jsontext.Value(c.normalizer)}
		m.whole = c.wholeWords
		return f, m, c.addBOS, m.setMerges(pairs)
	case "llama":
		prefix := g.AddSpacePrefix == nil || *g.AddSpacePrefix
		f = tokenizerFile{Normalizer: jsontext.Value(llamaNormalizer(prefix)), Decoder: jsontext.Value(llamaDecoder(prefix))}
		if g.Unknown != nil && *g.Unknown >= 0 && int(*g.Unknown) < len(g.Tokens) {
			unknown := g.Tokens[*g.Unknown]
			m.unk, m.fuse = &unknown, true
		}
		m.bytes = t.bytes(true)
		return f, m, true, g.setMerges(m)
	}
	return f, nil, false, fmt.Errorf("model %q, want gpt2 or llama", g.Model)
}

func llamaNormalizer(prefix bool) string {
	const replace = `{"type":"Replace","pattern":{"String":" "},"content":"▁"}`
	if !prefix {
		return replace
	}
	return `{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},` + replace + `]}`
}

func llamaDecoder(prefix bool) string {
	steps := `{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"}`
	if prefix {
		steps += `,{"type":"Strip","content":" ","start":1,"stop":0}`
	}
	return `{"type":"Sequence","decoders":[` + steps + `]}`
}

// setMerges gives a model the merges that scores stand for: two tokens merge if the result is a token, the one of the
// highest score first, of equal scores the leftmost.
func (g GGUF) setMerges(m *bpe) error {
	if len(g.Scores) == 0 {
		return errors.New("no scores")
	}
	ranks := slices.Clone(g.Scores)
	slices.SortFunc(ranks, func(a, b float32) int { return cmp.Compare(b, a) })
	ranks = slices.Compact(ranks)
	m.merges = map[pair]merge{}
	mergeable := func(text string) (int32, bool) {
		id, ok := m.ids[text]
		return id, ok && g.kind(int(id)) != ggufUnknown
	}
	for id, text := range g.Tokens {
		score := g.Scores[id]
		if math.IsNaN(float64(score)) {
			return fmt.Errorf("the score of token %d is NaN", id)
		}
		if g.kind(id) != 1 {
			continue
		}
		if len(text) > maxPieceBytes {
			return fmt.Errorf("token %d of %d bytes, want at most %d", id, len(text), maxPieceBytes)
		}
		rank, _ := slices.BinarySearchFunc(ranks, score, func(r, s float32) int { return cmp.Compare(s, r) })
		for at := range text {
			left, okLeft := mergeable(text[:at])
			right, okRight := mergeable(text[at:])
			if okLeft && okRight && at > 0 && utf8.RuneStart(text[at]) {
				m.merges[pair{left, right}] = merge{rank, int32(id)}
			}
		}
	}
	return nil
}
