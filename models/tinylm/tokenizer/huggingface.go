package tokenizer

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/files"
)

// maxTokenizerBytes bounds a tokenizer.json; the largest known ones have 40 MB.
const maxTokenizerBytes = 256 << 20

// maxErrorBytes bounds the text of an error, which may quote a tokenizer.json.
const maxErrorBytes = 400

// huggingFace is a tokenizer.json.
type huggingFace struct {
	hash [sha256.Size]byte
	end  int32 // the separator

	added      addedTokens // found in the text before normalization
	normalized addedTokens // found in normalized text
	// The same for a text of spans. Normalized text does not show which parts were plain, so special tokens are found
	// before normalization.
	addedPlain, normalizedPlain addedTokens
	special                     []bool // of each id: added tokens that control the model
	normal                      []normalizer
	steps                       []preTokenizer
	letters                     *letters // spell bytes in the vocabulary; nil: it has plain text
	spells                      bool     // words have plain text: the last step is to spell them
	model                       subwordModel
	encoders                    sync.Pool // of *encoder

	decoding decoding
	pieces   []string         // of each id, as in the file
	texts    []string         // of each id, as it appears inside a text
	names    map[string]int32 // ids by the text in the file
	roles
}

// tokenizerFile is the part of a tokenizer.json that is read: not truncation and padding.
type tokenizerFile struct {
	AddedTokens   []addedFile    `json:"added_tokens"`
	Normalizer    jsontext.Value `json:"normalizer"`
	PreTokenizer  jsontext.Value `json:"pre_tokenizer"`
	PostProcessor jsontext.Value `json:"post_processor"`
	Model         jsontext.Value `json:"model"`
	Decoder       jsontext.Value `json:"decoder"`
}

// separators are known tokens that end a document.
func separators() []string {
	return []string{
		"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>", "[EOS]", "<EOS>", "[SEP]", "<sep>",
	}
}

func readHuggingFace(path, separator string) (*huggingFace, error) {
	b, err := files.ReadFile(path, maxTokenizerBytes)
	if err != nil {
		return nil, err
	}
	t, err := parseHuggingFace(b)
	if err == nil {
		err = t.findSeparator(separator)
	}
	if err != nil {
		return nil, inFile(path, err)
	}
	return t, nil
}

// inFile names the file of an error, which it cuts, since it may quote the file.
func inFile(path string, err error) error {
	if len(err.Error()) > maxErrorBytes {
		err = fmt.Errorf("%.*s (cut)", maxErrorBytes, err)
	}
	return fmt.Errorf("%s: %w", path, err)
}

// parseHuggingFace reads the content of a tokenizer.json.
func parseHuggingFace(b []byte) (*huggingFace, error) {
	var f tokenizerFile
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, err
	}
	model, err := readSubwordModel(f.Model)
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	t, err := newHuggingFace(f, model)
	if err != nil {
		return nil, err
	}
	t.hash = sha256.Sum256(b)
	if t.prefix, err = t.readPrefix(f.PostProcessor); err != nil {
		return nil, fmt.Errorf("post-processor: %w", err)
	}
	return t, nil
}

// newHuggingFace makes a tokenizer of a model and the other parts of a tokenizer.json.
func newHuggingFace(f tokenizerFile, model subwordModel) (t *huggingFace, err error) {
	defer catchStop(&err)
	t = &huggingFace{model: model, roles: roles{bos: -1}}
	t.encoders.New = func() any { return newEncoder(t) }
	var normal []string
	if t.normal, normal, err = readParts(f.Normalizer, "normalizers", normalizers()); err != nil {
		return nil, fmt.Errorf("normalizer: %w", err)
	}
	if t.steps, t.letters, t.spells, err = readSplitters(f.PreTokenizer, normal); err != nil {
		return nil, fmt.Errorf("pre-tokenizer: %w", err)
	}
	if t.decoding, err = readDecoding(f.Decoder, t.letters); err != nil {
		return nil, fmt.Errorf("decoder: %w", err)
	}
	return t, t.readPieces(f.AddedTokens)
}

// readPieces reads the added tokens, and fills pieces, texts and names.
func (t *huggingFace) readPieces(added []addedFile) (err error) {
	t.pieces = slices.Clone(t.model.pieces())
	t.names = make(map[string]int32, len(t.pieces)+len(added))
	for id, text := range t.pieces {
		t.names[text] = int32(id)
	}
	most, contents := len(t.pieces)+len(added), 0
	for _, a := range added {
		contents += len(a.Content)
	}
	growth := newBudget(contents)
	for _, a := range added {
		if a.Content == "" {
			return errors.New("an added token without text")
		}
		if a.ID == nil {
			return fmt.Errorf("added token %q without an id", a.Content)
		}
		if id, ok := t.names[a.Content]; ok && int(id) != *a.ID {
			return fmt.Errorf("added token %q has the id %d, and %d in the vocabulary", a.Content, *a.ID, id)
		}
		text := a.Content
		if a.Normalized {
			text = applyAll(t.normal, text, growth)
			t.normalized.add(a, text)
		} else {
			t.added.add(a, text)
		}
		if a.Normalized && !a.Special {
			t.normalizedPlain.add(a, text)
		} else {
			t.addedPlain.add(a, a.Content)
		}
		if t.letters != nil { // so that the decoder returns this text
			text = string(t.letters.spell(nil, []byte(text)))
		}
		if t.pieces, err = putPiece(t.pieces, text, *a.ID, most); err != nil {
			return err
		}
		t.names[a.Content] = int32(*a.ID)
	}
	t.special = make([]bool, len(t.pieces))
	for _, a := range added {
		t.special[*a.ID] = a.Special
	}
	t.texts, growth = make([]string, len(t.pieces)), pieceBudget(t.pieces)
	for id, piece := range t.pieces {
		if piece != "" {
			t.texts[id] = t.decoding.decodeOne(piece, false, false, growth)
		}
	}
	return nil
}

// pieceBudget returns the budget of decoders for tokens.
func pieceBudget(pieces []string) *budget {
	n := 0
	for _, piece := range pieces {
		n += len(piece)
	}
	return newBudget(n)
}

// findSeparator finds the token that ends a document.
func (t *huggingFace) findSeparator(separator string) error {
	names := separators()
	if separator != "" {
		names = []string{separator}
	}
	for _, name := range names {
		if id, ok := t.names[name]; ok && name != "" {
			t.end = id
			return nil
		}
	}
	if separator == "" && len(t.ends) > 0 {
		t.end = t.ends[0]
		return nil
	}
	return fault.Between("Separator", "no end-of-document token; tried %s; set the option separator",
		strings.Join(names, " "))
}

func (t *huggingFace) tokenizer() *Tokenizer {
	return &Tokenizer{len(t.pieces), t.end, fmt.Sprintf("%x %d", t.hash, t.end), t}
}

func (t *huggingFace) decode(ids []int32) (_ string, err error) {
	defer catchStop(&err)
	pieces := make([]string, 0, len(ids))
	for i, id := range ids {
		if id < 0 || int(id) >= len(t.pieces) {
			return "", fmt.Errorf("token %d at %d, the vocabulary has %d", id, i, len(t.pieces))
		}
		if t.pieces[id] != "" {
			pieces = append(pieces, t.pieces[id])
		}
	}
	return t.decoding.decodeAll(pieces), nil
}

// encode appends the tokens of text, in which special tokens are found outside of the plain ranges. If these are not
// nil, the model makes no special tokens of text but the one for what is unknown.
func (t *huggingFace) encode(to []int32, text []byte, plain ranges) (_ []int32, err error) {
	defer catchStop(&err)
	if !utf8.Valid(text) {
		return nil, errors.New("text is not UTF-8, which the tokenizer needs")
	}
	e := t.encoders.Get().(*encoder)
	defer t.encoders.Put(e)
	e.ids, e.err, e.budget = to, nil, newBudget(len(text))
	added, normalized := &t.added, &t.normalized
	if plain != nil {
		added, normalized = &t.addedPlain, &t.normalizedPlain
	}
	added.split(text, plain, e.add, func(text []byte, first bool) {
		if len(t.normal) > 0 {
			text = []byte(applyAll(t.normal, string(text), e.budget))
		}
		normalized.split(text, nil, e.add, func(text []byte, begins bool) {
			from := len(e.ids)
			e.step(0, text, first && begins)
			if plain != nil && e.err == nil {
				e.err = t.checkPlain(e.ids[from:])
			}
		})
	})
	to, e.ids = e.ids, nil
	return to, e.err
}

// checkPlain returns an error if the model has made a special token of a text.
func (t *huggingFace) checkPlain(ids []int32) error {
	for _, id := range ids {
		if t.special[id] && id != t.model.unknown() {
			return fmt.Errorf("the vocabulary has no tokens for %q as plain text, but only the special token", t.pieces[id])
		}
	}
	return nil
}
