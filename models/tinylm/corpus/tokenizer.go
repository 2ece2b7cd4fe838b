package corpus

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"golang.org/x/text/unicode/norm"
)

// mostTokenizerBytes bounds a tokenizer.json; the largest known ones have 40 MB.
const mostTokenizerBytes = 256 << 20

// tokenizer is a Hugging Face tokenizer of the kind of GPT-2, Llama 3 and Qwen: byte-level byte-pair encoding. No pure Go library gave
// the ids of the reference for it, so it is written here. Other kinds are refused. Characters newer than Go's Unicode tables may be cut
// in other places than there.
type tokenizer struct {
	hash   [sha256.Size]byte
	tokens []string       // text of each id, as bytes
	ids    map[string]int // of the vocabulary, by text
	end    int32          // the separator
	merges map[pair]merge
	bytes  [256]int32 // ids of single bytes
	whole  bool       // a word of the vocabulary needs no merges

	added      addedTokens // found in the text as it is
	normalized addedTokens // found in normalized text
	normal     []norm.Form
	split      []splitter
	encoders   sync.Pool // of *encoder
}

// separators are known tokens that end a document.
func separators() []string {
	return []string{"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>", "[EOS]"}
}

// readTokenizer reads a tokenizer.json.
func readTokenizer(path, separator string) (*tokenizer, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, mostTokenizerBytes+1))
	if err == nil && len(b) > mostTokenizerBytes {
		err = fmt.Errorf("more than %d bytes, want at most that", mostTokenizerBytes)
	}
	var t *tokenizer
	if err == nil {
		t, err = parseTokenizer(b)
	}
	if err == nil {
		err = t.findSeparator(separator)
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w", path, err)
	}
	return t, nil
}

// parseTokenizer makes a tokenizer of the content of a tokenizer.json.
func parseTokenizer(b []byte) (*tokenizer, error) {
	var f tokenizerFile
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, err
	}
	t := &tokenizer{hash: sha256.Sum256(b), whole: f.Model.IgnoreMerges}
	if err := f.Model.check(); err != nil {
		return nil, err
	}
	var err error
	if t.normal, err = f.Normalizer.forms(); err != nil {
		return nil, fmt.Errorf("normalizer: %w", err)
	}
	if t.split, err = f.PreTokenizer.splitters(); err != nil {
		return nil, fmt.Errorf("pre-tokenizer: %w", err)
	}
	if err := t.readVocabulary(f); err != nil {
		return nil, err
	}
	if t.merges, err = t.readMerges(f.Model.Merges); err != nil {
		return nil, err
	}
	t.encoders.New = func() any { return newEncoder(t) }
	return t, nil
}

// readVocabulary fills tokens and ids.
func (t *tokenizer) readVocabulary(f tokenizerFile) error {
	var vocab map[string]int
	if err := json.Unmarshal(f.Model.Vocab, &vocab); err != nil {
		return fmt.Errorf("vocabulary: %w", err)
	}
	most := len(vocab) + len(f.AddedTokens)
	put := func(id int, text string) error {
		if id < 0 || id >= 2*most+1024 {
			return fmt.Errorf("token %q has the id %d, want 0 or more, and not far above the number of tokens, %d", text, id, most)
		}
		for len(t.tokens) <= id {
			t.tokens = append(t.tokens, "")
		}
		t.tokens[id] = text
		return nil
	}
	t.ids = make(map[string]int, len(vocab))
	letters := byteLetters()
	for text, id := range vocab {
		raw, ok := letters.bytes(text)
		if !ok { // as <|endoftext|> may be, which no merge makes
			raw = text
		} else {
			t.ids[raw] = id
		}
		if err := put(id, raw); err != nil {
			return err
		}
	}
	for i := range t.bytes {
		id, ok := t.ids[string([]byte{byte(i)})]
		if !ok {
			return fmt.Errorf("no token for the byte %d: not a byte-level vocabulary", i)
		}
		t.bytes[i] = int32(id)
	}
	for _, a := range f.AddedTokens {
		if a.Content == "" || a.LeftStrip || a.RightStrip || a.SingleWord {
			return fmt.Errorf("added token %q with lstrip %t, rstrip %t, single_word %t, want text and none of them", a.Content, a.LeftStrip, a.RightStrip, a.SingleWord)
		}
		if err := put(a.ID, a.Content); err != nil {
			return err
		}
		if a.Normalized && len(t.normal) > 0 {
			t.normalized.add(t.normalize(a.Content), int32(a.ID))
		} else {
			t.added.add(a.Content, int32(a.ID))
		}
	}
	return nil
}

// findSeparator finds the token that ends a document.
func (t *tokenizer) findSeparator(separator string) error {
	names := separators()
	if separator != "" {
		names = []string{separator}
	}
	for _, name := range names {
		if i := slices.Index(t.tokens, name); i >= 0 {
			t.end = int32(i)
			return nil
		}
	}
	return fmt.Errorf("no token ends a document, sought %s: name one as the separator", strings.Join(names, " "))
}

func (t *tokenizer) size() int        { return len(t.tokens) }
func (t *tokenizer) separator() int32 { return t.end }
func (t *tokenizer) identity() string { return fmt.Sprintf("%x %d", t.hash, t.end) }

func (t *tokenizer) decode(ids []int32) (string, error) {
	var b strings.Builder
	for i, id := range ids {
		if id < 0 || int(id) >= len(t.tokens) {
			return "", fmt.Errorf("token %d at %d, the vocabulary has %d", id, i, len(t.tokens))
		}
		b.WriteString(t.tokens[id])
	}
	return b.String(), nil
}

func (t *tokenizer) appendToken(text []byte, id int32) []byte {
	if id < 0 || int(id) >= len(t.tokens) {
		return text
	}
	return append(text, t.tokens[id]...)
}

func (t *tokenizer) length(ids []int32) int {
	n := 0
	for _, id := range ids {
		n += len(t.tokens[id])
	}
	return n
}

func (t *tokenizer) encode(to []int32, text []byte) ([]int32, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("text is not UTF-8, which the tokenizer needs")
	}
	e := t.encoders.Get().(*encoder)
	defer t.encoders.Put(e)
	e.ids = to
	t.added.cut(text, e.add, func(text []byte) {
		if len(t.normal) > 0 {
			text = []byte(t.normalize(string(text)))
		}
		t.normalized.cut(text, e.add, e.words)
	})
	to, e.ids = e.ids, nil
	return to, nil
}

func (t *tokenizer) normalize(text string) string {
	for _, f := range t.normal {
		text = f.String(text)
	}
	return text
}

// addedTokens are found in text before it is split. The longest one at the first place counts.
type addedTokens struct {
	byFirst [256][]addedToken // by first byte, long ones first
}

type addedToken struct {
	text string
	id   int32
}

func (a *addedTokens) add(text string, id int32) {
	list := append(a.byFirst[text[0]], addedToken{text, id})
	slices.SortStableFunc(list, func(a, b addedToken) int { return len(b.text) - len(a.text) })
	a.byFirst[text[0]] = list
}

// cut gives the added tokens of a text and what is between them, in order.
func (a *addedTokens) cut(text []byte, token func(int32), other func([]byte)) {
	from := 0
	for i := 0; i < len(text); i++ {
		for _, t := range a.byFirst[text[i]] {
			if len(text)-i >= len(t.text) && string(text[i:i+len(t.text)]) == t.text {
				if from < i {
					other(text[from:i])
				}
				token(t.id)
				from = i + len(t.text)
				i = from - 1
				break
			}
		}
	}
	if from < len(text) {
		other(text[from:])
	}
}
