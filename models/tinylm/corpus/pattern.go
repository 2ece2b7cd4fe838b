package corpus

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

// The patterns of GPT-2, and of Llama 3 and Qwen, which differ in the number of digits of a word. Go's regexp has no lookahead.
const (
	gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	llama3Start = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}`
	llama3End   = `| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// knownPattern returns a scanner that cuts like a pattern, of which every character is a part of a match.
func knownPattern(pattern string) (scanner, bool) {
	switch pattern {
	case gpt2Pattern:
		return scanner{gpt2: true}, true
	case llama3Start + `{1,3}` + llama3End:
		return scanner{digits: 3}, true
	case llama3Start + llama3End:
		return scanner{digits: 1}, true
	}
	return scanner{}, false
}

// matches finds a regular expression.
type matches struct{ re *regexp2.Regexp }

// newMatches compiles a pattern of the reference's regular expressions, those of Oniguruma. A pattern that may mean something else in Go is
// an error.
func newMatches(pattern string) (matches, error) {
	translated, err := translate(pattern)
	if err != nil {
		return matches{}, fmt.Errorf("pattern %q: %w", pattern, err)
	}
	re, err := regexp2.Compile(translated, regexp2.None)
	if err != nil {
		return matches{}, fmt.Errorf("pattern %q: %w", pattern, err)
	}
	return matches{re}, nil
}

func (m matches) find(text []byte, found func(from, to int, match bool)) {
	runes := []rune(string(text))
	at, from := 0, 0 // in runes and in bytes
	next := func(n int, match bool) {
		to := from
		for _, r := range runes[at : at+n] {
			to += utf8.RuneLen(r)
		}
		if n > 0 || match {
			found(from, to, match)
		}
		at, from = at+n, to
	}
	// The only error of a match is that its time is over, and it has no limit.
	for match, _ := m.re.FindRunesMatch(runes); match != nil; match, _ = m.re.FindNextMatch(match) {
		next(match.Index-at, false)
		next(match.Length, true)
	}
	next(len(runes)-at, false)
}

const (
	sameEscapes = `sSdDtnrfpPx`                              // escapes of letters that mean the same there and here
	wordClass   = `\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}Ⓐ-ⓩ🄰-🅉🅐-🅩🅰-🆉` // what \w means there inside of [ ]
	wordMore    = `²³¹¼½¾`                                   // what \w matches there too, but not inside of [ ]
)

// translate returns a pattern that means the same here.
func translate(pattern string) (string, error) {
	var b strings.Builder
	inClass, classStart := false, 0
	for i := 0; i < len(pattern); i++ {
		rest := pattern[i:]
		switch c := pattern[i]; {
		case c == '\\' && len(rest) < 2:
			return "", fmt.Errorf(`it ends with \`)
		case c == '\\':
			part, err := translateEscape(rest[1], inClass)
			if err != nil {
				return "", err
			}
			b.WriteString(part)
			i++
		case inClass && c == '[':
			return "", fmt.Errorf("[ inside of [ ] is not supported")
		case inClass && strings.HasPrefix(rest, "&&"):
			return "", fmt.Errorf("&& inside of [ ] is not supported")
		case inClass:
			inClass = c != ']' || i == classStart
			b.WriteByte(c)
		case c == '[':
			b.WriteByte(c)
			inClass, classStart = true, i+1
			if strings.HasPrefix(rest, "[^") {
				b.WriteByte('^')
				i, classStart = i+1, i+2
			}
			if strings.HasPrefix(pattern[classStart:], "]") {
				return "", fmt.Errorf("] at the beginning of [ ] is not supported")
			}
		case c == '^' || c == '$':
			return "", fmt.Errorf("%c is not supported", c)
		case strings.HasPrefix(rest, "(?") && !hasPrefix(rest, "(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!"):
			return "", fmt.Errorf("%.4q is not supported", rest)
		case strings.HasPrefix(rest, "{,"):
			return "", fmt.Errorf("%.2q is not supported", rest)
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), nil
}

// translateEscape translates the escape \c.
func translateEscape(c byte, inClass bool) (string, error) {
	isLetter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
	switch {
	case c == 'w' && inClass:
		return wordClass, nil
	case c == 'w':
		return "[" + wordClass + wordMore + "]", nil
	case c == 'W' && !inClass:
		return "[^" + wordClass + wordMore + "]", nil
	case isLetter && !strings.ContainsRune(sameEscapes, rune(c)), c >= '0' && c <= '9', c >= utf8.RuneSelf:
		return "", fmt.Errorf(`\%c is not supported`, c)
	}
	return `\` + string(c), nil
}

func hasPrefix(text string, prefixes ...string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(text, p) {
			return true
		}
	}
	return false
}
