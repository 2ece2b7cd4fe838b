// Package tokenizer turns text into tokens and back, by a Hugging Face tokenizer.json or with a token for each byte.
//
// It is written here because no pure Go library gave the ids of Python's tokenizers. A text goes through the
// normalizers, the pre-tokenizers, which cut it into words, and the subword model, BPE or Unigram. The decoders turn
// tokens into text. Each has a file here. An unknown part of a tokenizer.json is an error. Characters newer than Go's
// Unicode tables may be cut in other places than by Python.
package tokenizer

import (
	"errors"
	"fmt"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/quote"
)

// Tokenizer turns text into tokens and back. Its methods may be called concurrently. The zero Tokenizer has no tokens:
// to encode or decode with it is an error.
type Tokenizer struct {
	vocab     int
	separator int32
	identity  string
	file      *huggingFace // nil: tokens below 256 are bytes
}

// Open reads a tokenizer.json. separator is the content of its token that ends a document; "" is the first known one,
// such as <|endoftext|>. Without a path each byte is a token, and the separator is the byte 0.
func Open(path, separator string) (*Tokenizer, error) {
	if path == "" {
		if separator != "" {
			return nil, fmt.Errorf("tokenizer: separator %q without a tokenizer.json; of bytes it is the byte 0", separator)
		}
		return &Tokenizer{256, 0, "bytes", nil}, nil
	}
	h, err := readHuggingFace(path, separator)
	if err != nil {
		return nil, fault.In("tokenizer", "", quote.Error(err))
	}
	return h.tokenizer(), nil
}

// Numbers returns a tokenizer for tokens that are not made from text, such as random ones. Tokens below 256 are bytes,
// the others have no text. separator is -1 if there is none.
func Numbers(vocab int, separator int32) *Tokenizer {
	return &Tokenizer{vocab, separator, fmt.Sprint("numbers ", vocab, " ", separator), nil}
}

// open returns t or, for a Tokenizer that nothing has opened, one that has no separator.
func (t *Tokenizer) open() *Tokenizer {
	if t == nil || t.vocab == 0 {
		return &Tokenizer{separator: -1}
	}
	return t
}

// Vocab returns the number of different tokens.
func (t *Tokenizer) Vocab() int { return t.open().vocab }

// Separator returns the token that follows each document, -1 if there is none.
func (t *Tokenizer) Separator() int32 { return t.open().separator }

// Identity names the vocabulary: tokenizers of equal identity give equal tokens and have the same separator. It is ""
// for the zero Tokenizer.
func (t *Tokenizer) Identity() string { return t.open().identity }

// Encode returns the tokens of text, without a separator and without tokens that a tokenizer's post-processor adds: the
// ids of Python's encode(text, add_special_tokens=False). Text without a token is an error if the tokenizer has no
// token for unknown text.
func (t *Tokenizer) Encode(text string) ([]int32, error) { return t.AppendEncode(nil, []byte(text)) }

// AppendEncode appends the tokens of text to ids: see Encode.
func (t *Tokenizer) AppendEncode(ids []int32, text []byte) ([]int32, error) {
	return t.appendEncode(ids, text, nil)
}

func (t *Tokenizer) appendEncode(ids []int32, text []byte, plain ranges) ([]int32, error) {
	ids, err := t.open().encode(ids, text, plain)
	if err != nil {
		return nil, fault.In("tokenizer", "encode", quote.Error(err))
	}
	return ids, nil
}

func (t *Tokenizer) encode(ids []int32, text []byte, plain ranges) ([]int32, error) {
	if t.file != nil {
		return t.file.encode(ids, text, plain)
	}
	if t.vocab == 0 {
		return nil, errNotOpened()
	}
	n := len(ids)
	ids = append(ids, make([]int32, len(text))...)
	for i, b := range text {
		if int(b) >= t.vocab {
			return nil, fmt.Errorf("byte %d at %d, the vocabulary has %d tokens", b, i, t.vocab)
		}
		ids[n+i] = int32(b)
	}
	return ids, nil
}

// Decode returns the text of tokens, as Python's decode(ids, skip_special_tokens=False) does, but it keeps bytes that
// are not UTF-8. It is not the encoded text if the tokenizer changes or loses text.
func (t *Tokenizer) Decode(ids []int32) (string, error) {
	text, err := t.open().decode(ids)
	if err != nil {
		return "", fault.In("tokenizer", "decode", quote.Error(err))
	}
	return text, nil
}

func (t *Tokenizer) decode(ids []int32) (string, error) {
	if t.file != nil {
		return t.file.decode(ids)
	}
	if t.vocab == 0 {
		return "", errNotOpened()
	}
	text := make([]byte, 0, len(ids))
	for i, id := range ids {
		if text = t.AppendToken(text, id); len(text) == i {
			return "", fmt.Errorf("token %d at %d is not a byte", id, i)
		}
	}
	return string(text), nil
}

func errNotOpened() error { return errors.New("the tokenizer is not one of Open or Numbers") }

// AppendToken appends the text that a token has inside a longer text; it may be part of a character. A token outside
// the vocabulary has none.
func (t *Tokenizer) AppendToken(text []byte, id int32) []byte {
	switch t = t.open(); {
	case id < 0 || int(id) >= t.vocab:
		return text
	case t.file != nil:
		return append(text, t.file.texts[id]...)
	case id > 255:
		return text
	}
	return append(text, byte(id))
}

// TextLen returns the bytes of the text that AppendToken appends for all ids, which must be tokens of the vocabulary.
func (t *Tokenizer) TextLen(ids []int32) (n int) {
	switch t = t.open(); {
	case t.file != nil:
		for _, id := range ids {
			n += len(t.file.texts[id])
		}
	case t.vocab > 0:
		n = len(ids)
	}
	return n
}

// A file may make a text longer: the steps that a text goes through may together add growthFactor times its bytes, and
// freeGrowth.
const (
	growthFactor = 16
	freeGrowth   = 4 << 10
)

// budget is the number of bytes that may still be added to a text, to all its parts in all steps together.
type budget struct{ length, left int }

func newBudget(length int) *budget { return &budget{length, growthFactor*length + freeGrowth} }

// check stops if n more bytes are too many.
func (b *budget) check(n int) {
	if n > b.left {
		panic(stop{fmt.Errorf("the tokenizer makes a text of %d bytes longer by more than %d, want less",
			b.length, growthFactor*b.length+freeGrowth)})
	}
}

// take takes n bytes from the budget if n > 0.
func (b *budget) take(n int) {
	b.check(n)
	b.left -= max(0, n)
}

// stop is the only error of finders, normalizers, splitters and decoders, for a pattern that takes too long or a text
// that becomes too long. They return no error: they panic with a stop, and their callers catch it.
type stop struct{ error }

// catchStop turns the panic of a stop into an error. Call it with defer.
func catchStop(err *error) {
	switch p := recover().(type) {
	case nil:
	case stop:
		*err = p
	default:
		panic(p)
	}
}
