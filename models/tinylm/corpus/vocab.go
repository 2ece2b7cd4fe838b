package corpus

import (
	"fmt"
	"unicode/utf8"
)

// Tokenizer turns text into tokens and back. Its methods may be called concurrently.
type Tokenizer struct{ vocab vocabulary }

// NewTokenizer returns the tokenizer that a corpus of these options has: that of a tokenizer.json, or bytes.
func NewTokenizer(o Options) (*Tokenizer, error) {
	v, err := newVocabulary(o)
	if err != nil {
		return nil, fmt.Errorf("corpus: %w", err)
	}
	return &Tokenizer{v}, nil
}

// Vocab returns the number of different tokens.
func (t *Tokenizer) Vocab() int { return t.vocab.size() }

// Separator returns the token that follows each document, -1 if there is none.
func (t *Tokenizer) Separator() int32 { return t.vocab.separator() }

// Encode returns the tokens of text, without a separator and without tokens that a tokenizer's post-processor adds: the ids of Python's
// encode(text, add_special_tokens=False). Text without a token is an error if the tokenizer has no token for unknown text.
func (t *Tokenizer) Encode(text string) ([]int32, error) {
	ids, err := t.vocab.encode(nil, []byte(text))
	if err != nil {
		return nil, fmt.Errorf("corpus: encode: %w", err)
	}
	return ids, nil
}

// Decode returns the text of tokens, as Python's decode(ids, skip_special_tokens=False) does, but it keeps bytes that are not UTF-8. It
// is not the encoded text if the tokenizer changes or loses text.
func (t *Tokenizer) Decode(ids []int32) (string, error) {
	text, err := t.vocab.decode(ids)
	if err != nil {
		return "", fmt.Errorf("corpus: decode: %w", err)
	}
	return text, nil
}

// AppendToken appends the text that a token has inside a longer text; it may be part of a character. A token outside the vocabulary has none.
func (t *Tokenizer) AppendToken(text []byte, id int32) []byte { return t.vocab.appendToken(text, id) }

// vocabulary turns text into tokens and back.
type vocabulary interface {
	size() int
	separator() int32
	encode(to []int32, text []byte) ([]int32, error) // appends the tokens of text
	decode(ids []int32) (string, error)
	appendToken(text []byte, id int32) []byte
	length(ids []int32) int // bytes of the text of ids, all below size
	identity() string
}

func newVocabulary(o Options) (vocabulary, error) {
	if o.Tokenizer == "" {
		if o.Separator != "" {
			return nil, fmt.Errorf("separator %q without a tokenizer; of bytes it is the byte 0", o.Separator)
		}
		return byteVocabulary{}, nil
	}
	return readTokenizer(o.Tokenizer, o.Separator)
}

// byteVocabulary makes each byte a token. The separator is the byte 0, which no text has.
type byteVocabulary struct{}

func (byteVocabulary) size() int              { return 256 }
func (byteVocabulary) separator() int32       { return 0 }
func (byteVocabulary) length(ids []int32) int { return len(ids) }
func (byteVocabulary) identity() string       { return "bytes" }

func (byteVocabulary) encode(to []int32, text []byte) ([]int32, error) {
	n := len(to)
	to = append(to, make([]int32, len(text))...)
	for i, b := range text {
		to[n+i] = int32(b)
	}
	return to, nil
}

func (byteVocabulary) decode(ids []int32) (string, error) {
	text := make([]byte, len(ids))
	for i, id := range ids {
		if id < 0 || id > 255 {
			return "", fmt.Errorf("token %d at %d is not a byte", id, i)
		}
		text[i] = byte(id)
	}
	return string(text), nil
}

func (byteVocabulary) appendToken(text []byte, id int32) []byte {
	if id < 0 || id > 255 {
		return text
	}
	return append(text, byte(id))
}

// randomVocabulary is a vocabulary of so many tokens. Those below 256 are bytes.
type randomVocabulary int

func (v randomVocabulary) size() int              { return int(v) }
func (v randomVocabulary) separator() int32       { return -1 }
func (v randomVocabulary) length(ids []int32) int { return len(ids) }
func (v randomVocabulary) identity() string       { return fmt.Sprint("random ", int(v)) }

func (v randomVocabulary) encode(to []int32, text []byte) ([]int32, error) {
	for i, b := range text {
		if int(b) >= int(v) {
			return nil, fmt.Errorf("byte %d at %d, the vocabulary has %d tokens", b, i, int(v))
		}
		to = append(to, int32(b))
	}
	return to, nil
}

func (v randomVocabulary) decode(ids []int32) (string, error) { return byteVocabulary{}.decode(ids) }

func (v randomVocabulary) appendToken(text []byte, id int32) []byte {
	return byteVocabulary{}.appendToken(text, id)
}

// runeStart returns the largest index up to i at which no character of text is cut, or i if text is not UTF-8.
func runeStart(text []byte, i int) int {
	for j := i; j >= 0 && j > i-utf8.UTFMax; j-- {
		if j == len(text) || utf8.RuneStart(text[j]) {
			return j
		}
	}
	return i
}
