package tokenizer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// escape translates an escape outside of [ ].
func (t *onig) escape(o onigOptions) (string, error) {
	if len(t.rest()) < 2 {
		return "", errors.New(`it ends with \`)
	}
	const word = "[" + wordClass + wordMore + "]"
	switch c := t.rest()[1]; c {
	case 'w', 'W', 'b', 'B', 'A', 'z', 'Z', 'R', 'N', 'O':
		t.at += 2
		return map[byte]string{
			'w': word, 'W': "[^" + wordClass + wordMore + "]",
			'A': `\A`, 'z': `\z`, 'Z': `(?=\n?\z)`, 'N': `[^\n]`, 'O': `[\s\S]`,
			'b': "(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))",
			'B': "(?:(?<=" + word + ")(?=" + word + ")|(?<!" + word + ")(?!" + word + "))",
			'R': "(?>\r\n|[\n\v\f\r\u0085\u2028\u2029])",
		}[c], nil
	case 'd', 'D', 's', 'S', 'h', 'H', 'p', 'P':
		item, err := t.classEscape()
		if err != nil {
			return "", err
		}
		return t.writeClass(&charClass{operands: [][]classItem{{item}}}, false) // a case counts, as for the reference
	}
	r, err := t.escapedRune()
	if err != nil {
		return "", err
	}
	return t.literal(r, o)
}

// escapedRune reads an escape that stands for a character.
func (t *onig) escapedRune() (rune, error) {
	t.at++
	c := t.rune()
	switch c {
	case 't', 'n', 'r', 'f', 'v', 'a', 'e':
		return map[rune]rune{'t': '\t', 'n': '\n', 'r': '\r', 'f': '\f', 'v': '\v', 'a': '\a', 'e': 0x1b}[c], nil
	case 'x':
		if inner, _, ok := strings.Cut(t.rest(), "}"); ok && strings.HasPrefix(inner, "{") {
			t.at += len(inner) + 1
			return codePoint(inner[1:], unicode.MaxRune)
		}
		return codePoint(t.digits(2), unicode.MaxASCII) // larger ones are bytes
	case 'u':
		return codePoint(t.digits(4), unicode.MaxRune)
	}
	if c == '0' || c < utf8.RuneSelf && (unicode.IsLetter(c) || unicode.IsDigit(c)) || c == utf8.RuneError {
		return 0, notSupported(`\` + string(c))
	}
	return c, nil
}

// digits returns up to n hexadecimal digits and skips them.
func (t *onig) digits(n int) string {
	from := t.at
	for t.at < len(t.pattern) && t.at < from+n && strings.IndexByte("0123456789abcdefABCDEF", t.pattern[t.at]) >= 0 {
		t.at++
	}
	return t.pattern[from:t.at]
}

// codePoint returns the character of a hexadecimal number.
func codePoint(digits string, most rune) (rune, error) {
	n, err := strconv.ParseUint(digits, 16, 32)
	if err != nil || n > uint64(most) || !utf8.ValidRune(rune(n)) {
		return 0, notSupported(fmt.Sprintf("the character %.20q", digits))
	}
	return rune(n), nil
}
