package tokenizer

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// decoder is one step from the text of a token in the vocabulary to its plain text.
type decoder struct {
	// text returns the text of a token, which may be much longer: b bounds it. first and last say that it is the first
	// or the last token of a text.
	text func(token string, first, last bool, b *budget) string
	// fuses says that the steps after this one get the text of all tokens as one token.
	fuses bool
}

// decoders returns the makers of decoders by their type in a tokenizer.json. CTC and WordPiece are missing.
func decoders() map[string]maker[decoder] {
	return map[string]maker[decoder]{
		"ByteFallback": constant(decoder{text: decodeByte}),
		"ByteLevel":    with(func(byteLevelOptions) (decoder, error) { return byteLevelDecoder(newLetters()), nil }),
		"Fuse": constant(decoder{
			text: func(token string, _, _ bool, _ *budget) string { return token }, fuses: true,
		}),
		"BPEDecoder": with(func(o struct {
			partType
			Suffix string `json:"suffix"`
		}) (d decoder, err error) {
			if o.Suffix == "" {
				err = fmt.Errorf("suffix %q, want text", o.Suffix)
			}
			d.text = func(token string, _, last bool, _ *budget) string { return replaceSpace(token, o.Suffix, last) }
			return d, err
		}),
		"Metaspace": with(func(o metaspaceOptions) (d decoder, err error) {
			scheme, err := o.scheme()
			d.text = func(token string, first, _ bool, _ *budget) string {
				return replaceSpace(token, o.Replacement, first && scheme != "never")
			}
			return d, err
		}),
		"Replace": with(func(o replaceOptions) (d decoder, err error) {
			replace, err := newReplace(o)
			d.text = func(token string, _, _ bool, b *budget) string { return replace(token, b) }
			return d, err
		}),
		"Strip": with(func(o struct {
			partType
			Content string `json:"content"`
			Start   int    `json:"start"`
			Stop    int    `json:"stop"`
		}) (d decoder, err error) {
			if utf8.RuneCountInString(o.Content) != 1 || o.Start < 0 || o.Stop < 0 {
				err = fmt.Errorf("content %q, start %d, stop %d, want one character and 0 or more",
					o.Content, o.Start, o.Stop)
			}
			d.text = func(token string, _, _ bool, _ *budget) string {
				for i := 0; i < o.Start && strings.HasPrefix(token, o.Content); i++ {
					token = token[len(o.Content):]
				}
				for i := 0; i < o.Stop && strings.HasSuffix(token, o.Content); i++ {
					token = token[:len(token)-len(o.Content)]
				}
				return token
			}
			return d, err
		}),
	}
}

// replaceSpace replaces what stands for a space in a token by a space or, at an end of the text, by nothing.
func replaceSpace(token, stands string, end bool) string {
	if end {
		return strings.ReplaceAll(token, stands, "")
	}
	return strings.ReplaceAll(token, stands, " ")
}

// decodeByte returns the byte of a token like <0x0A>, and other tokens unchanged.
func decodeByte(token string, _, _ bool, _ *budget) string {
	if len(token) == 6 && token[:3] == "<0x" && token[5] == '>' {
		if b, err := strconv.ParseUint(token[3:5], 16, 8); err == nil {
			return string([]byte{byte(b)})
		}
	}
	return token
}

func byteLevelDecoder(l *letters) decoder {
	return decoder{text: func(token string, _, _ bool, _ *budget) string { return l.read(token) }, fuses: true}
}

// decoding is the list of all decoders of a tokenizer.
type decoding []decoder

// readDecoding reads the decoders. If there are none, letters for bytes become bytes; without letters, tokens get
// spaces between them, but not for an empty Sequence.
func readDecoding(value jsontext.Value, l *letters) (decoding, error) {
	steps, kinds, err := readParts(value, "decoders", decoders())
	if err != nil {
		return nil, err
	}
	switch {
	case len(steps) == 0 && l != nil:
		return decoding{byteLevelDecoder(l)}, nil
	case len(steps) == 0 && (len(value) == 0 || value.Kind() == 'n'):
		return decoding{{text: func(token string, first, _ bool, _ *budget) string {
			if first {
				return token
			}
			return " " + token
		}}}, nil
	}
	fused := false
	for i, step := range steps {
		if kinds[i] == "ByteFallback" && i+1 < len(kinds) && kinds[i+1] != "Fuse" {
			return nil, fmt.Errorf("%s behind ByteFallback, want Fuse", kinds[i+1])
		}
		if kinds[i] == "Strip" && fused { // of a whole text, but not of a single token of it
			steps[i].text = func(token string, first, last bool, b *budget) string {
				if first && last {
					return step.text(token, true, true, b)
				}
				return token
			}
		}
		fused = fused || step.fuses
	}
	return steps, nil
}

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
		token = step.text(token, first, last, b)
		b.take(len(token) - before)
	}
	return token
}
