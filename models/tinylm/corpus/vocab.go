package corpus

import (
	"fmt"
	"unicode/utf8"
)

// vocabulary turns text into tokens and back.
type vocabulary interface {
	size() int
	separator() int32
	encode(to []int32, text []byte) ([]int32, error) // appends the tokens of text
	decode(ids []int32) (string, error)
	length(ids []int32) int // of the text of tokens, which are below size, in bytes
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

// randomVocabulary has so many tokens. Those below 256 stand for bytes.
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

// runeStart returns the largest place up to i where no character of text is cut. Text that is not UTF-8 is cut at i.
func runeStart(text []byte, i int) int {
	for j := i; j >= 0 && j > i-utf8.UTFMax; j-- {
		if j == len(text) || utf8.RuneStart(text[j]) {
			return j
		}
	}
	return i
}
