package tokenizer

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// decoder is one step from the text of a token in the vocabulary to its plain text.
type decoder struct {
	// text returns the text of a token. first and last say that it is the first or the last token of a text.
	text func(token string, first, last bool) string
	// fuses says that the steps after this one get the text of all tokens as one token.
	fuses bool
	// replace is used instead of text: its result may be much longer than a token.
	replace normalizer
}

// decoders returns the makers of decoders by their type in a tokenizer.json. CTC is missing.
func decoders() map[string]maker[decoder] {
	return map[string]maker[decoder]{
		"BPEDecoder":   with(newBPEDecoder),
		"ByteFallback": constant(decoder{text: decodeByte}),
		"ByteLevel":    with(newByteLevelDecoder),
		"Fuse":         constant(decoder{text: func(token string, _, _ bool) string { return token }, fuses: true}),
		"Metaspace":    with(newMetaspaceDecoder),
		"Replace":      with(newReplaceDecoder),
		"Strip":        with(newStripDecoder),
	}
}

// decoding is the list of all decoders of a tokenizer.
type decoding []decoder

// readDecoding reads the decoders. If there are none, letters for bytes become bytes; without letters, tokens get spaces between them, but
// not for an empty Sequence.
func readDecoding(value jsontext.Value, l *letters) (decoding, error) {
	parts, err := flatten(value, "decoders", 0)
	if err != nil {
		return nil, err
	}
	steps, err := makeParts(parts, decoders())
	if err != nil {
		return nil, err
	}
	switch {
	case len(steps) == 0 && l != nil:
		return decoding{byteLevelDecoder(l)}, nil
	case len(steps) == 0 && (len(value) == 0 || value.Kind() == 'n'):
		return decoding{{text: spaced}}, nil
	}
	fused := false
	for i := range steps {
		if parts[i].kind == "ByteFallback" && i+1 < len(parts) && parts[i+1].kind != "Fuse" {
			return nil, fmt.Errorf("%s behind ByteFallback, want Fuse", parts[i+1].kind)
		}
		if parts[i].kind == "Strip" && fused {
			steps[i].text = atEnds(steps[i].text)
		}
		fused = fused || steps[i].fuses
	}
	return steps, nil
}

// decodeAll returns the text of tokens.
func (d decoding) decodeAll(tokens []string) string {
	perToken := len(d)
	for i, step := range d {
		if step.fuses {
			perToken = i + 1
			break
		}
	}
	growth := pieceBudget(tokens)
	var b strings.Builder
	for i, token := range tokens {
		b.WriteString(d[:perToken].decodeOne(token, i == 0, i == len(tokens)-1, growth))
	}
	return d[perToken:].decodeOne(b.String(), true, true, growth)
}

// decodeOne returns the text of a token. What the decoders add is taken from the budget.
func (d decoding) decodeOne(token string, first, last bool, b *budget) string {
	for _, step := range d {
		before := len(token)
		if step.replace != nil {
			token = step.replace(token, b)
		} else {
			token = step.text(token, first, last)
		}
		b.take(len(token) - before)
	}
	return token
}

// spaced puts a space before each token but the first one.
func spaced(token string, first, _ bool) string {
	if first {
		return token
	}
	return " " + token
}

// decodeByte returns the byte of a token like <0x0A>, and other tokens unchanged.
func decodeByte(token string, _, _ bool) string {
	if b, ok := parseByteToken(token); ok {
		return string([]byte{b})
	}
	return token
}

// atEnds applies a step to a whole text, but not to a single token of it.
func atEnds(text func(token string, first, last bool) string) func(token string, first, last bool) string {
	return func(token string, first, last bool) string {
		if first && last {
			return text(token, true, true)
		}
		return token
	}
}

func byteLevelDecoder(l *letters) decoder {
	return decoder{text: func(token string, _, _ bool) string { return l.read(token) }, fuses: true}
}

func newByteLevelDecoder(byteLevelOptions) (decoder, error) {
	return byteLevelDecoder(newLetters()), nil
}

type bpeDecoderOptions struct {
	partType
	Suffix string `json:"suffix"`
}

func newBPEDecoder(o bpeDecoderOptions) (decoder, error) {
	if o.Suffix == "" {
		return decoder{}, fmt.Errorf("suffix %q, want text", o.Suffix)
	}
	return decoder{text: func(token string, _, last bool) string {
		if last {
			return strings.ReplaceAll(token, o.Suffix, "")
		}
		return strings.ReplaceAll(token, o.Suffix, " ")
	}}, nil
}

func newMetaspaceDecoder(o metaspaceOptions) (decoder, error) {
	scheme, err := o.scheme()
	return decoder{text: func(token string, first, _ bool) string {
		if first && scheme != "never" {
			return strings.ReplaceAll(token, o.Replacement, "")
		}
		return strings.ReplaceAll(token, o.Replacement, " ")
	}}, err
}

func newReplaceDecoder(o replaceOptions) (decoder, error) {
	replace, err := newReplace(o)
	return decoder{replace: replace}, err
}

type stripDecoderOptions struct {
	partType
	Content string `json:"content"`
	Start   int    `json:"start"`
	Stop    int    `json:"stop"`
}

func newStripDecoder(o stripDecoderOptions) (decoder, error) {
	if utf8.RuneCountInString(o.Content) != 1 || o.Start < 0 || o.Stop < 0 {
		return decoder{}, fmt.Errorf("content %q, start %d, stop %d, want one character and 0 or more", o.Content, o.Start, o.Stop)
	}
	return decoder{text: func(token string, _, _ bool) string {
		for i := 0; i < o.Start && strings.HasPrefix(token, o.Content); i++ {
			token = token[len(o.Content):]
		}
		for i := 0; i < o.Stop && strings.HasSuffix(token, o.Content); i++ {
			token = token[:len(token)-len(o.Content)]
		}
		return token
	}}, nil
}
