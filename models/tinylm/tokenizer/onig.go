package tokenizer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of a pattern, and so of the time to compile it.
const (
	maxPatternBytes = 64 << 10
	maxGroups       = 100  // groups in groups, classes in classes and quantifiers in a row
	maxClassParts   = 2000 // classes and escapes in [ ]
)

// translate returns a pattern of regexp2 that means the same as a pattern of Oniguruma, in the syntax that the
// reference uses.
func translate(pattern string) (string, error) {
	if len(pattern) > maxPatternBytes {
		return "", fmt.Errorf("%d bytes, want at most %d", len(pattern), maxPatternBytes)
	}
	t := &onig{pattern: pattern}
	out, err := t.group(onigOptions{}, 0)
	if err == nil && t.at < len(pattern) {
		err = errors.New(") without (")
	}
	return out, err
}

// onig reads a pattern.
type onig struct {
	pattern  string
	at       int
	parts    int    // classes and escapes in [ ]
	literals string // the last literals of a group that ignores case, in lower case
}

// onigOptions are the options of (?im).
type onigOptions struct{ fold, dotAll bool }

func (t *onig) rest() string { return t.pattern[t.at:] }

// take skips a text if it is next, and reports whether it was.
func (t *onig) take(text string) bool {
	if !strings.HasPrefix(t.rest(), text) {
		return false
	}
	t.at += len(text)
	return true
}

// rune returns the next character and skips it.
func (t *onig) rune() rune {
	r, size := utf8.DecodeRuneInString(t.rest())
	t.at += size
	return r
}

func notSupported(construct string) error { return fmt.Errorf("%.40q is not supported", construct) }

// group translates up to the end of the pattern or of the group.
func (t *onig) group(o onigOptions, depth int) (string, error) {
	if depth > maxGroups {
		return "", fmt.Errorf("groups in more than %d groups", maxGroups)
	}
	var b strings.Builder
	t.literals = ""
	for t.at < len(t.pattern) && t.rest()[0] != ')' {
		if t.take("|") {
			b.WriteByte('|')
			t.literals = ""
			continue
		}
		from := t.at
		atom, err := t.atom(o, depth)
		if err != nil {
			return "", err
		}
		source, end := t.pattern[from:t.at], t.at
		if atom, err = t.repeat(atom); err == nil && t.at > end && isAnchor(source) {
			err = fmt.Errorf("%.20q repeated is not supported", source)
		}
		if err != nil {
			return "", err
		}
		b.WriteString(atom)
	}
	return b.String(), nil
}

// isAnchor reports whether an atom matches a position, and no text.
func isAnchor(source string) bool {
	for _, start := range []string{"^", "$", `\A`, `\z`, `\Z`, `\b`, `\B`, "(?=", "(?!", "(?<=", "(?<!"} {
		if strings.HasPrefix(source, start) {
			return true
		}
	}
	return false
}

// atom translates what a quantifier may follow.
func (t *onig) atom(o onigOptions, depth int) (string, error) {
	c := t.rest()[0]
	if strings.IndexByte("([.^$", c) >= 0 {
		t.literals = ""
	}
	switch c {
	case '*', '+', '?':
		return "", fmt.Errorf("%c without something to repeat", c)
	case '(':
		return t.parentheses(o, depth)
	case '[':
		set, err := t.class(o, depth)
		return set.String(), err
	case '\\':
		return t.escape(o)
	}
	switch r := t.rune(); {
	case r == '.' && o.dotAll:
		return `[\s\S]`, nil
	case r == '.':
		return ".", nil
	case r == '^':
		return `(?:\A|(?<=\n)(?!\z))`, nil
	case r == '$':
		return `(?=\n|\z)`, nil
	default:
		return t.literal(r, o)
	}
}

// escape translates an escape outside of [ ].
func (t *onig) escape(o onigOptions) (string, error) {
	const word = "[" + wordClass + wordMore + "]"
	simple := map[byte]string{
		'w': word, 'W': "[^" + wordClass + wordMore + "]",
		'A': `\A`, 'z': `\z`, 'Z': `(?=\n?\z)`, 'N': `[^\n]`, 'O': `[\s\S]`,
		'b': "(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))",
		'B': "(?:(?<=" + word + ")(?=" + word + ")|(?<!" + word + ")(?!" + word + "))",
		'R': "(?>\r\n|[\n\v\f\r\u0085\u2028\u2029])",
	}
	if rest := t.rest(); len(rest) > 1 && simple[rest[1]] != "" {
		t.at += 2
		return simple[rest[1]], nil
	}
	if isClassEscape(t.rest()) {
		set, err := t.classEscape() // a case counts, as for the reference
		return set.String(), err
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
	if t.at == len(t.pattern) {
		return 0, errors.New(`it ends with \`)
	}
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
		return 0, fmt.Errorf("the character %.20q is not supported", digits)
	}
	return rune(n), nil
}

// literal returns a character, or the class of those that equal it when case is ignored.
func (t *onig) literal(r rune, o onigOptions) (string, error) {
	if o.fold {
		t.literals += strings.ToLower(string(r))
		for _, pair := range []string{"ss", "ff", "fi", "fl", "st", "i\u0307"} { // equal one character, as ß or ﬁ
			if strings.HasSuffix(t.literals, pair) {
				return "", fmt.Errorf("%q without regard to case is not supported", pair)
			}
		}
		set, err := rangeSet(r, r, true)
		return set.String(), err
	}
	if r < utf8.RuneSelf && strings.ContainsRune(`\*+?|{[()^$.# `, r) {
		return `\` + string(r), nil
	}
	return string(r), nil
}

// parentheses translates a group.
func (t *onig) parentheses(o onigOptions, depth int) (string, error) {
	open, bare := "(?:", false
	switch rest := t.rest(); {
	case t.take("(?:"):
	case t.take("(?="), t.take("(?!"), t.take("(?<="), t.take("(?<!"), t.take("(?>"):
		open = rest[:len(rest)-len(t.rest())]
	case t.take("(?"):
		var err error
		if bare, err = t.options(&o); err != nil {
			return "", err
		}
	case strings.HasPrefix(rest, "(*"):
		return "", notSupported("(*")
	default:
		t.at++
	}
	inner, err := t.group(o, depth+1)
	if err == nil && !bare && !t.take(")") {
		err = errors.New("( without )")
	}
	return open + inner + ")", err
}

// options reads the options of (?i:...) or (?i), behind the question mark. bare says that it is the latter, which holds
// up to the end of the group around.
func (t *onig) options(o *onigOptions) (bare bool, err error) {
	from, on := t.at-2, true
	for t.at < len(t.pattern) {
		switch t.rune() {
		case 'i':
			o.fold = on
		case 'm':
			o.dotAll = on
		case '-':
			on = false
		case ':':
			return false, nil
		case ')':
			return true, nil
		default:
			return false, notSupported(t.pattern[from:t.at])
		}
	}
	return false, notSupported(t.pattern[from:])
}

// repeat translates the quantifiers behind an atom: several ones apply one after the other, and a + behind one that is
// no interval makes it possessive.
func (t *onig) repeat(atom string) (string, error) {
	for count := 0; t.at < len(t.pattern); count++ {
		q := t.rest()[:1]
		interval := q == "{"
		var err error
		switch {
		case interval:
			if q, err = t.interval(); err != nil || q == "" {
				return atom, err
			}
		case strings.Contains("*+?", q):
			t.at++
		default:
			return atom, nil
		}
		if count == maxGroups {
			return "", fmt.Errorf("more than %d quantifiers in a row", maxGroups)
		}
		if atom == "" {
			return "", fmt.Errorf("%s without something to repeat", q)
		}
		if count > 0 || !isSingle(atom) {
			atom = "(?:" + atom + ")"
		}
		switch {
		case t.take("?"):
			atom += q + "?"
		case !interval && t.take("+"):
			atom = "(?>" + atom + q + ")"
		default:
			atom += q
		}
	}
	return atom, nil
}

// isSingle reports whether a translated atom needs no group around it.
func isSingle(atom string) bool {
	_, size := utf8.DecodeRuneInString(atom)
	return len(atom) == size || atom[0] == '[' || atom[0] == '(' || atom[0] == '\\'
}

// interval reads {n}, {n,}, {,m} or {n,m}. Another text behind { is no interval, but stands for itself: the result is
// "" then.
func (t *onig) interval() (string, error) {
	inner, _, ok := strings.Cut(t.rest()[1:], "}")
	low, high, two := strings.Cut(inner, ",")
	if !ok || low+high == "" || strings.Trim(low+high, "0123456789") != "" {
		return "", nil
	}
	n, errLow := strconv.Atoi("0" + low)
	m, errHigh := strconv.Atoi("0" + high)
	if errLow != nil || errHigh != nil || max(n, m) > 100_000 || two && high != "" && n > m {
		return "", notSupported("{" + inner + "}")
	}
	t.at += len(inner) + 2
	switch {
	case !two && strings.HasPrefix(t.rest(), "?"):
		return "", notSupported("{" + inner + "}?")
	case !two:
		return fmt.Sprintf("{%d}", n), nil
	case high == "":
		return fmt.Sprintf("{%d,}", n), nil
	}
	return fmt.Sprintf("{%d,%d}", n, m), nil
}
