package tokenizer

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/quote"
)

// maxConfigBytes bounds a tokenizer_config.json and the files beside it, of which large ones list all added tokens.
const maxConfigBytes = 64 << 20

// roles are the tokens that begin and end texts.
type roles struct {
	bos    int32   // -1: none
	ends   []int32 // a model ends what it writes with one of them
	prefix []int32 // before each text
}

// facts returns what a file says, or that of a Tokenizer without a file: no tokens of its own.
func (t *Tokenizer) facts() *huggingFace {
	if f := t.open().file; f != nil {
		return f
	}
	return &huggingFace{roles: roles{bos: -1}}
}

// Token returns the token of a text in the vocabulary, such as <|im_end|>.
func (t *Tokenizer) Token(text string) (id int32, ok bool) {
	id, ok = t.facts().names[text]
	return id, ok
}

// Special reports whether a token controls the model and is no text for a reader: see EncodeSpans.
func (t *Tokenizer) Special(id int32) bool {
	f := t.facts()
	return f.checkID(id) == nil && f.special[id]
}

// BOS returns the token that begins a text, -1 if none is known.
func (t *Tokenizer) BOS() int32 { return t.facts().bos }

// Ends returns the tokens with which a model ends what it writes: those that end a text, and those that end a turn of a
// conversation. Open knows none, OpenFolder and FromGGUF do.
func (t *Tokenizer) Ends() []int32 { return slices.Clone(t.facts().ends) }

// Prefix returns the tokens that belong before a text, usually none or BOS. Encode does not add them, and a chat
// template has them already.
func (t *Tokenizer) Prefix() []int32 { return slices.Clone(t.facts().prefix) }

// Span is a part of a text. In a plain one special tokens are text like any other, so that it cannot control a model.
type Span struct {
	Text  string
	Plain bool
}

// EncodeSpans returns the tokens of the joined texts of spans. A special token is found where none of its text is in a
// plain span; all else is as in Encode, where spans begin and end makes no difference. If all is plain, the tokens are
// those of Python with encode_special_tokens.
//
// Special tokens are the added tokens with this flag, or the control tokens of a GGUF file. They are found before
// normalization, whatever the file says. Other added tokens, such as <think> of some models, are text and found
// everywhere. Plain text that the vocabulary can only write as a special token is an error.
func (t *Tokenizer) EncodeSpans(spans []Span) ([]int32, error) {
	var text []byte
	plain := ranges{} // not nil
	for _, s := range spans {
		if s.Plain && s.Text != "" {
			plain = append(plain, [2]int{len(text), len(text) + len(s.Text)})
		}
		text = append(text, s.Text...)
	}
	return t.appendEncode(nil, text, plain)
}

// readPrefix returns the tokens that a post-processor puts before a text.
func (t *huggingFace) readPrefix(value jsontext.Value) (ids []int32, err error) {
	parts, err := flatten(value, "processors", 0)
	if err != nil {
		return nil, err
	}
	for _, p := range parts {
		if p.kind != "TemplateProcessing" {
			continue // ByteLevel changes no tokens; others are for models that are no language models
		}
		var o struct {
			Single []struct {
				SpecialToken *struct {
					ID string `json:"id"`
				}
				Sequence jsontext.Value
			} `json:"single"`
			Special map[string]struct {
				IDs []int32 `json:"ids"`
			} `json:"special_tokens"`
		}
		if err := json.Unmarshal(p.value, &o); err != nil {
			return nil, err
		}
		for _, piece := range o.Single {
			if piece.SpecialToken == nil {
				break
			}
			for _, id := range o.Special[piece.SpecialToken.ID].IDs {
				if err := t.checkID(id); err != nil {
					return nil, fmt.Errorf("%s: %w", piece.SpecialToken.ID, err)
				}
				ids = append(ids, id)
			}
		}
	}
	return ids, nil
}

func (t *huggingFace) checkID(id int32) error {
	if id < 0 || int(id) >= len(t.pieces) {
		return fmt.Errorf("token %d, the vocabulary has %d", id, len(t.pieces))
	}
	return nil
}

// tokenName is the text of a token, written as a string, as an object with the member content, or null.
type tokenName string

func (n *tokenName) UnmarshalJSON(b []byte) error {
	var o struct {
		Content string `json:"content"`
	}
	if jsontext.Value(b).Kind() == '{' {
		err := json.Unmarshal(b, &o)
		*n = tokenName(o.Content)
		return err
	}
	return json.Unmarshal(b, (*string)(n))
}

// tokenIDs is a token, a list of tokens, or null.
type tokenIDs []int32

func (n *tokenIDs) UnmarshalJSON(b []byte) error {
	if jsontext.Value(b).Kind() != '0' {
		return json.Unmarshal(b, (*[]int32)(n))
	}
	*n = make(tokenIDs, 1)
	return json.Unmarshal(b, &(*n)[0])
}

// specialConfig is what a tokenizer_config.json, or a special_tokens_map.json beside it, says about special tokens.
type specialConfig struct {
	BOS    tokenName `json:"bos_token"`
	EOS    tokenName `json:"eos_token"`
	AddBOS *bool     `json:"add_bos_token"`
}

// OpenFolder reads the tokenizer of a Hugging Face folder: tokenizer.json, as Open does, and where they are there
// tokenizer_config.json, special_tokens_map.json and generation_config.json, which say how texts begin and end. Without
// a known separator it is the token that ends a text.
func OpenFolder(folder, separator string) (_ *Tokenizer, err error) {
	defer func() { err = fault.In("tokenizer", "", quote.Error(err)) }()
	path := filepath.Join(folder, "tokenizer.json")
	b, err := files.ReadFile(path, maxTokenizerBytes)
	if err != nil {
		return nil, err
	}
	t, err := parseHuggingFace(b)
	if err != nil {
		return nil, inFile(path, err)
	}
	var special, config specialConfig
	var generation struct {
		EOS tokenIDs `json:"eos_token_id"`
	}
	err = readConfig(folder, "tokenizer_config.json", &config)
	if err == nil {
		err = readConfig(folder, "special_tokens_map.json", &special)
	}
	if err == nil {
		err = readConfig(folder, "generation_config.json", &generation)
	}
	if err != nil {
		return nil, err
	}
	config.BOS, config.EOS = cmp.Or(config.BOS, special.BOS), cmp.Or(config.EOS, special.EOS)
	if err := t.setRoles(config, generation.EOS); err != nil {
		return nil, fmt.Errorf("%s: %w", folder, err)
	}
	if err := t.findSeparator(separator); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t.tokenizer(), nil
}

// readConfig reads a file of JSON, if it is there.
func readConfig(folder, name string, to any) error {
	path := filepath.Join(folder, name)
	b, err := files.ReadFile(path, maxConfigBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, to); err != nil {
		return inFile(path, err)
	}
	return nil
}

func (t *huggingFace) setRoles(c specialConfig, ends []int32) error {
	id := func(member string, n tokenName) (int32, error) {
		if n == "" {
			return -1, nil
		}
		id, ok := t.names[string(n)]
		if !ok {
			return -1, fmt.Errorf("%s %q is not in the vocabulary", member, n)
		}
		return id, nil
	}
	bos, err := id("bos_token", c.BOS)
	if err != nil {
		return err
	}
	eos, err := id("eos_token", c.EOS)
	if err != nil {
		return err
	}
	t.bos = bos
	if eos >= 0 {
		ends = append([]int32{eos}, ends...)
	}
	for _, id := range ends {
		if err := t.checkID(id); err != nil {
			return fmt.Errorf("eos_token_id: %w", err)
		}
		if !slices.Contains(t.ends, id) {
			t.ends = append(t.ends, id)
		}
	}
	if c.AddBOS != nil {
		t.prefix = nil
		if *c.AddBOS && bos < 0 {
			return errors.New("add_bos_token without a bos_token")
		}
		if *c.AddBOS {
			t.prefix = []int32{bos}
		}
	}
	return nil
}
