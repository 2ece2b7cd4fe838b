package tokenizer

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// form returns the normalizer of a Unicode form. It leaves characters unchanged that are newer than the tables of the
// reference.
func form(f norm.Form) func(string) string {
	return func(text string) string {
		var b strings.Builder
		for {
			i := strings.IndexFunc(text, func(r rune) bool { return r >= utf8.RuneSelf && !unicode.Is(inUnicode9, r) })
			if i < 0 {
				b.WriteString(normalize(f, text))
				return b.String()
			}
			_, size := utf8.DecodeRuneInString(text[i:])
			b.WriteString(normalize(f, text[:i]))
			b.WriteString(text[i : i+size])
			text = text[i+size:]
		}
	}
}

// normalize returns the form of a text. norm puts a joiner between the marks of a text with more than 30 in a row.
func normalize(f norm.Form, text string) string {
	normal := f.String(text)
	if strings.Count(normal, norm.GraphemeJoiner) > strings.Count(text, norm.GraphemeJoiner) {
		return normalizeLong(f, text)
	}
	return normal
}

// normalizeLong returns the form of a text with any number of marks, by chapter 3.11 of the Unicode standard.
func normalizeLong(f norm.Form, text string) string {
	decomposed := norm.NFD
	if f == norm.NFKC || f == norm.NFKD {
		decomposed = norm.NFKD
	}
	var runes []rune
	for _, r := range text {
		runes = append(runes, []rune(decomposed.String(string(r)))...)
	}
	for from := 0; from < len(runes); {
		to := from
		for to < len(runes) && combining(runes[to]) > 0 {
			to++
		}
		slices.SortStableFunc(runes[from:to], func(a, b rune) int { return int(combining(a)) - int(combining(b)) })
		from = to + 1
	}
	if f == norm.NFD || f == norm.NFKD {
		return string(runes)
	}
	return string(compose(runes))
}

// combining returns the canonical combining class of a character, 0 for a starter.
func combining(r rune) uint8 { return norm.NFD.PropertiesString(string(r)).CCC() }

// compose joins each character with the starter before it, unless a mark between them blocks it.
func compose(runes []rune) []rune {
	var out []rune
	starter, last := -1, uint8(0)
	for _, r := range runes {
		class := combining(r)
		if starter >= 0 && (starter == len(out)-1 || last < class) {
			if joined := norm.NFC.String(string([]rune{out[starter], r})); utf8.RuneCountInString(joined) == 1 {
				out[starter], _ = utf8.DecodeRuneInString(joined)
				continue
			}
		}
		if class == 0 {
			starter = len(out)
		}
		out, last = append(out, r), class
	}
	return out
}
