package tinylm

import (
	"fmt"
	"strings"
	"unicode"
)

// Encode returns the tokens of text, one a byte.
func Encode(text string) []int32 {
	ids := make([]int32, len(text))
	for i := range ids {
		ids[i] = int32(text[i])
	}
	return ids
}

// Decode returns the text of tokens that are bytes.
func Decode(ids []int32) (string, error) {
	b := make([]byte, len(ids))
	for i, id := range ids {
		if id < 0 || id > 255 {
			return "", fmt.Errorf("tinylm: token %d at %d is not a byte", id, i)
		}
		b[i] = byte(id)
	}
	return string(b), nil
}

// Printable returns text for a terminal: control characters and bytes that are not UTF-8 are replaced.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}
