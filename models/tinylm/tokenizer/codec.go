package tokenizer

import (
	"errors"
	"fmt"
)

// codec does the work of a Tokenizer.
type codec interface {
	size() int
	separator() int32
	encode(to []int32, text []byte) ([]int32, error) // appends the tokens of text
	decode(ids []int32) (string, error)
	appendToken(text []byte, id int32) []byte
	length(ids []int32) int // bytes of the text of ids, all below size
	identity() string
}

// noCodec is the codec of a Tokenizer that nothing has opened: it has no tokens.
type noCodec struct{}

func (noCodec) size() int                               { return 0 }
func (noCodec) separator() int32                        { return -1 }
func (noCodec) encode([]int32, []byte) ([]int32, error) { return nil, errNotOpened() }
func (noCodec) decode([]int32) (string, error)          { return "", errNotOpened() }
func (noCodec) appendToken(text []byte, _ int32) []byte { return text }
func (noCodec) length([]int32) int                      { return 0 }
func (noCodec) identity() string                        { return "" }

func errNotOpened() error { return errors.New("the tokenizer is not one of Open or Numbers") }

// byteCodec makes each byte a token. The separator is the byte 0, which no text has.
type byteCodec struct{}

func (byteCodec) size() int              { return 256 }
func (byteCodec) separator() int32       { return 0 }
func (byteCodec) length(ids []int32) int { return len(ids) }
func (byteCodec) identity() string       { return "bytes" }

func (byteCodec) encode(to []int32, text []byte) ([]int32, error) {
	n := len(to)
	to = append(to, make([]int32, len(text))...)
	for i, b := range text {
		to[n+i] = int32(b)
	}
	return to, nil
}

func (byteCodec) decode(ids []int32) (string, error) {
	text := make([]byte, len(ids))
	for i, id := range ids {
		if id < 0 || id > 255 {
			return "", fmt.Errorf("token %d at %d is not a byte", id, i)
		}
		text[i] = byte(id)
	}
	return string(text), nil
}

func (byteCodec) appendToken(text []byte, id int32) []byte {
	if id < 0 || id > 255 {
		return text
	}
	return append(text, byte(id))
}

// numberCodec is a vocabulary of n tokens; those below 256 are bytes.
type numberCodec struct {
	n   int
	end int32 // the separator
}

func (c numberCodec) size() int              { return c.n }
func (c numberCodec) separator() int32       { return c.end }
func (c numberCodec) length(ids []int32) int { return len(ids) }
func (c numberCodec) identity() string       { return fmt.Sprint("numbers ", c.n, " ", c.end) }

func (c numberCodec) encode(to []int32, text []byte) ([]int32, error) {
	for i, b := range text {
		if int(b) >= c.n {
			return nil, fmt.Errorf("byte %d at %d, the vocabulary has %d tokens", b, i, c.n)
		}
		to = append(to, int32(b))
	}
	return to, nil
}

func (c numberCodec) decode(ids []int32) (string, error) { return byteCodec{}.decode(ids) }

func (c numberCodec) appendToken(text []byte, id int32) []byte {
	return byteCodec{}.appendToken(text, id)
}
