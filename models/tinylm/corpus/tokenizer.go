package corpus

import "fmt"

// Tokenizer turns text into tokens and back. Its methods may be called concurrently.
type Tokenizer struct{ codec textCodec }

// NewTokenizer returns the tokenizer that a corpus of these options has: that of a tokenizer.json, or bytes.
func NewTokenizer(o Options) (*Tokenizer, error) {
	c, err := newCodec(o)
	if err != nil {
		return nil, fmt.Errorf("corpus: %w", err)
	}
	return &Tokenizer{c}, nil
}

// Vocab returns the number of different tokens.
func (t *Tokenizer) Vocab() int { return t.codec.size() }

// Separator returns the token that follows each document, -1 if there is none.
func (t *Tokenizer) Separator() int32 { return t.codec.separator() }

// Encode returns the tokens of text, without a separator and without tokens that a tokenizer's post-processor adds: the ids of Python's
// encode(text, add_special_tokens=False). Text without a token is an error if the tokenizer has no token for unknown text.
func (t *Tokenizer) Encode(text string) ([]int32, error) {
	ids, err := t.codec.encode(nil, []byte(text))
	if err != nil {
		return nil, fmt.Errorf("corpus: encode: %w", err)
	}
	return ids, nil
}

// Decode returns the text of tokens, as Python's decode(ids, skip_special_tokens=False) does, but it keeps bytes that are not UTF-8. It
// is not the encoded text if the tokenizer changes or loses text.
func (t *Tokenizer) Decode(ids []int32) (string, error) {
	text, err := t.codec.decode(ids)
	if err != nil {
		return "", fmt.Errorf("corpus: decode: %w", err)
	}
	return text, nil
}

// AppendToken appends the text that a token has inside a longer text; it may be part of a character. A token outside the vocabulary has none.
func (t *Tokenizer) AppendToken(text []byte, id int32) []byte { return t.codec.appendToken(text, id) }
