package corpus

import "fmt"

// textCodec turns text into tokens and back.
type textCodec interface {
	size() int
	separator() int32
	encode(to []int32, text []byte) ([]int32, error) // appends the tokens of text
	decode(ids []int32) (string, error)
	appendToken(text []byte, id int32) []byte
	length(ids []int32) int // bytes of the text of ids, all below size
	identity() string
}

// newCodec returns the codec of a tokenizer.json, or of bytes.
func newCodec(o Options) (textCodec, error) {
	if o.Tokenizer == "" {
		if o.Separator != "" {
			return nil, fmt.Errorf("separator %q without a tokenizer; of bytes it is the byte 0", o.Separator)
		}
		return byteCodec{}, nil
	}
	return readHuggingFace(o.Tokenizer, o.Separator)
}

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

// randomCodec is a vocabulary of this many tokens; those below 256 are bytes.
type randomCodec int

func (c randomCodec) size() int              { return int(c) }
func (c randomCodec) separator() int32       { return -1 }
func (c randomCodec) length(ids []int32) int { return len(ids) }
func (c randomCodec) identity() string       { return fmt.Sprint("random ", int(c)) }

func (c randomCodec) encode(to []int32, text []byte) ([]int32, error) {
	for i, b := range text {
		if int(b) >= int(c) {
			return nil, fmt.Errorf("byte %d at %d, the vocabulary has %d tokens", b, i, int(c))
		}
		to = append(to, int32(b))
	}
	return to, nil
}

func (c randomCodec) decode(ids []int32) (string, error) { return byteCodec{}.decode(ids) }

func (c randomCodec) appendToken(text []byte, id int32) []byte {
	return byteCodec{}.appendToken(text, id)
}
