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

// numberCodec is a vocabulary of n tokens; those below 256 are bytes.
type numberCodec struct {
	n    int
	end  int32  // the separator
	name string // the identity
}

func (c numberCodec) size() int              { return c.n }
func (c numberCodec) separator() int32       { return c.end }
func (c numberCodec) length(ids []int32) int { return len(ids) }
func (c numberCodec) identity() string       { return c.name }

func (c numberCodec) encode(to []int32, text []byte) ([]int32, error) {
	n := len(to)
	to = append(to, make([]int32, len(text))...)
	for i, b := range text {
		if int(b) >= c.n {
			return nil, fmt.Errorf("byte %d at %d, the vocabulary has %d tokens", b, i, c.n)
		}
		to[n+i] = int32(b)
	}
	return to, nil
}

func (c numberCodec) decode(ids []int32) (string, error) {
	text := make([]byte, 0, len(ids))
	for i, id := range ids {
		if text = c.appendToken(text, id); len(text) == i {
			return "", fmt.Errorf("token %d at %d is not a byte", id, i)
		}
	}
	return string(text), nil
}

func (c numberCodec) appendToken(text []byte, id int32) []byte {
	if id < 0 || int(id) >= min(c.n, 256) {
		return text
	}
	return append(text, byte(id))
}

// noCodec is the codec of a Tokenizer that nothing has opened: it has no tokens.
type noCodec struct{ numberCodec }

func newNoCodec() noCodec { return noCodec{numberCodec{end: -1}} }

func (noCodec) length([]int32) int                      { return 0 }
func (noCodec) encode([]int32, []byte) ([]int32, error) { return nil, errNotOpened() }
func (noCodec) decode([]int32) (string, error)          { return "", errNotOpened() }

func errNotOpened() error { return errors.New("the tokenizer is not one of Open or Numbers") }
