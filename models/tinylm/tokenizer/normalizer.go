package tokenizer

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// normalizer rewrites a text before it is cut into words.
type normalizer func(text string, b *budget) string

// plain makes a normalizer of a function whose results are at most a few times as long as the text.
func plain(f func(text string) string) normalizer {
	return func(text string, _ *budget) string { return f(text) }
}

// normalizers returns the makers of normalizers by their type in a tokenizer.json. Precompiled of SentencePiece and
// StripAccents are missing.
func normalizers() map[string]maker[normalizer] {
	return map[string]maker[normalizer]{
		"NFC":       constant(plain(form(norm.NFC))),
		"NFD":       constant(plain(form(norm.NFD))),
		"NFKC":      constant(plain(form(norm.NFKC))),
		"NFKD":      constant(plain(form(norm.NFKD))),
		"Lowercase": constant(plain(lowercase)),
		"Nmt":       constant(plain(cleanNmt)),
		"Strip": with(func(o struct {
			partType
			Left  bool `json:"strip_left"`
			Right bool `json:"strip_right"`
		}) (normalizer, error) {
			return plain(func(text string) string {
				if o.Left {
					text = strings.TrimLeftFunc(text, unicode.IsSpace)
				}
				if o.Right {
					text = strings.TrimRightFunc(text, unicode.IsSpace)
				}
				return text
			}), nil
		}),
		"Prepend": with(func(o struct {
			partType
			Prepend string `json:"prepend"`
		}) (normalizer, error) {
			return func(text string, b *budget) string {
				if text == "" {
					return ""
				}
				b.check(len(o.Prepend))
				return o.Prepend + text
			}, nil
		}),
		"Replace": with(newReplace),
		"BertNormalizer": with(func(o struct {
			partType
			Clean     bool  `json:"clean_text"`
			Chinese   bool  `json:"handle_chinese_chars"`
			Accents   *bool `json:"strip_accents"` // null: same as lowercase
			Lowercase bool  `json:"lowercase"`
		}) (normalizer, error) {
			return plain(func(text string) string {
				if o.Clean {
					text = strings.Map(clean, text)
				}
				if o.Chinese {
					text = spaceChinese(text)
				}
				if o.Accents != nil && *o.Accents || o.Accents == nil && o.Lowercase {
					text = strings.Map(stripAccent, form(norm.NFD)(text))
				}
				if o.Lowercase {
					text = lowercase(text)
				}
				return text
			}), nil
		}),
	}
}

// lowercase lowers each character by itself: a sigma at the end of a word has no special form.
func lowercase(text string) string {
	return strings.ReplaceAll(strings.Map(func(r rune) rune {
		if r == 'İ' {
			return r // becomes two characters
		}
		return unicode.ToLower(r)
	}, text), "İ", "i\u0307")
}

// cleanNmt removes control characters and makes some white space a space, as SentencePiece does for translation.
func cleanNmt(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || r == '\n' || r == '\f' || r == '\r' || r >= 0x200b && r <= 0x200f ||
			strings.ContainsRune("\u1680\u2028\u2029▁\ufeff\ufffd", r):
			return ' '
		case r > 0 && r < ' ' || r == 0x7f || r == 0x8f || r == 0x9f:
			return -1
		}
		return r
	}, text)
}

// spaceChinese puts spaces around Chinese characters.
func spaceChinese(text string) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.Is(chinese, r) {
			b.WriteString(" " + string(r) + " ")
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

type replaceOptions struct {
	partType
	Pattern patternOptions `json:"pattern"`
	Content string         `json:"content"`
}

// newReplace returns a function that replaces each match of a pattern, for a normalizer or a decoder.
func newReplace(o replaceOptions) (normalizer, error) {
	find, err := o.Pattern.finder()
	return func(text string, b *budget) string {
		var out strings.Builder
		find.spans([]byte(text), func(from, to int, match bool) {
			if match {
				b.check(out.Len() + len(o.Content) - to)
				out.WriteString(o.Content)
			} else {
				out.WriteString(text[from:to])
			}
		})
		return out.String()
	}, err
}

// applyAll applies normalizers one after the other. What they add is taken from the budget.
func applyAll(all []normalizer, text string, b *budget) string {
	for _, n := range all {
		before := len(text)
		text = n(text, b)
		b.take(len(text) - before)
	}
	return text
}

// patternOptions is a pattern of Split or Replace: either a text or a regular expression.
type patternOptions struct {
	String *string `json:"String"`
	Regex  *string `json:"Regex"`
}

func (o patternOptions) finder() (finder, error) {
	switch {
	case (o.String == nil) == (o.Regex == nil):
		return nil, errors.New("pattern with neither or both of String and Regex, want one")
	case o.String == nil:
		m, err := newMatches(*o.Regex)
		return m.find, err
	case *o.String == "":
		return nil, fmt.Errorf("pattern %q, want text", *o.String)
	}
	return findText(*o.String), nil
}
