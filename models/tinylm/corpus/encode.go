package corpus

import "fmt"

// Tokenizer turns text into tokens and back, as a Corpus with the same options does, without data.
type Tokenizer struct{ vocab vocabulary }

// NewTokenizer reads the tokenizer.json at path, see Options.Tokenizer. Of the empty path each byte is a token.
func NewTokenizer(path string) (*Tokenizer, error) {
	v, err := newVocabulary(Options{Tokenizer: path})
	if err != nil {
		return nil, fmt.Errorf("corpus: %w", err)
	}
	return &Tokenizer{v}, nil
}

// Vocab returns the number of different tokens.
func (t *Tokenizer) Vocab() int { return t.vocab.size() }

// Encode returns the tokens of text, without a separator.
func (t *Tokenizer) Encode(text string) ([]int32, error) { return encode(t.vocab, text) }

// Decode returns the text of tokens.
func (t *Tokenizer) Decode(ids []int32) (string, error) { return decode(t.vocab, ids) }

func encode(v vocabulary, text string) ([]int32, error) {
	ids, err := v.encode(nil, []byte(text))
	if err != nil {
		return nil, fmt.Errorf("corpus: encode: %w", err)
	}
	return ids, nil
}

func decode(v vocabulary, ids []int32) (string, error) {
	text, err := v.decode(ids)
	if err != nil {
		return "", fmt.Errorf("corpus: decode: %w", err)
	}
	return text, nil
}
