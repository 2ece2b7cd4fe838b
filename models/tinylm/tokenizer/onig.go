package tokenizer

import (
	"errors"
	"fmt"
	"regexp"
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

// The tokens of a pattern of Oniguruma, the regular expressions of the reference, outside and inside of [ ]. (? and (*
// begin what is not supported, and so do intervals of large numbers.
var (
	outside = tokens(`\((?:\?(?:<?[=!]|[:>]|(?:[im]+(?:-[im]*)?|-[im]+)[:)])?|\*)?`, `\{[0-9]+(?:,[0-9]*)?\}|\{,[0-9]+\}`)
	inside  = tokens(`\[:\^?[a-zA-Z]{1,20}:\]`, `&&`)
	large   = regexp.MustCompile(`[0-9]{6}`)
)

// tokens returns a regular expression of the given tokens, escapes and single characters.
func tokens(more ...string) *regexp.Regexp {
	more = append(more, `\\[pP]\{\^?[ _a-zA-Z0-9-]*\}`, `\\x\{[0-9A-Fa-f]{1,6}\}`, `\\x[0-9A-Fa-f]{1,2}`,
		`\\u[0-9A-Fa-f]{4}`, `\\.`, `.`)
	return regexp.MustCompile(`(?s)^(?:` + strings.Join(more, "|") + `)`)
}

// translate returns a pattern of regexp2 that means the same as a pattern of Oniguruma.
func translate(pattern string) (string, error) {
	if len(pattern) > maxPatternBytes {
		return "", fmt.Errorf("%d bytes, want at most %d", len(pattern), maxPatternBytes)
	}
	t := &onig{rest: pattern}
	out, err := t.group(onigOptions{}, 0)
	if err == nil && t.rest != "" {
		err = errors.New(") without (")
	}
	return out, err
}

// onig reads a pattern.
type onig struct {
	rest     string // of the pattern
	parts    int    // classes and escapes in [ ]
	literals string // the last literals of a group that ignores case, in lower case
}

// onigOptions are the options of (?im).
type onigOptions struct{ fold, dotAll bool }

// next skips the next token and returns it, "" at the end.
func (t *onig) next(of *regexp.Regexp) string {
	token := of.FindString(t.rest)
	t.rest = t.rest[len(token):]
	return token
}

// take skips a text if it is next, and reports whether it was.
func (t *onig) take(text string) (ok bool) {
	t.rest, ok = strings.CutPrefix(t.rest, text)
	return ok
}

func notSupported(construct string) error { return fmt.Errorf("%.40q is not supported", construct) }

// group translates up to the end of the pattern or of the group.
func (t *onig) group(o onigOptions, depth int) (string, error) {
	if depth > maxGroups {
		return "", fmt.Errorf("groups in more than %d groups", maxGroups)
	}
	var b strings.Builder
	t.literals = ""
	for t.rest != "" && t.rest[0] != ')' {
		token := t.next(outside)
		if token == "|" {
			b.WriteByte('|')
			t.literals = ""
			continue
		}
		atom, err := t.atom(token, o, depth)
		if err != nil {
			return "", err
		}
		end := t.rest
		if atom, err = t.repeat(atom); err != nil {
			return "", err
		}
		switch token {
		case "^", "$", `\A`, `\z`, `\Z`, `\b`, `\B`, "(?=", "(?!", "(?<=", "(?<!": // match a position, and no text
			if t.rest != end {
				return "", fmt.Errorf("%q repeated is not supported", token)
			}
		}
		b.WriteString(atom)
	}
	return b.String(), nil
}

// translations returns what tokens that are no characters become.
func translations() map[string]string {
	const word, other = "[" + wordClass + wordMore + "]", "[^" + wordClass + wordMore + "]"
	return map[string]string{
		`^`: `(?:\A|(?<=\n)(?!\z))`, `$`: `(?=\n|\z)`, `\A`: `\A`, `\z`: `\z`, `\Z`: `(?=\n?\z)`,
		`\b`: "(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))",
		`\B`: "(?:(?<=" + word + ")(?=" + word + ")|(?<!" + word + ")(?!" + word + "))",
		`\w`: word, `\W`: other, `.`: `.`, `\N`: `[^\n]`, `\O`: `[\s\S]`, `\R`: "(?>\r\n|[\n\v\f\r\u0085\u2028\u2029])",
	}
}

// atom translates what a quantifier may follow.
func (t *onig) atom(token string, o onigOptions, depth int) (string, error) {
	if token == "." && o.dotAll {
		token = `\O`
	}
	translation := translations()[token]
	if translation != "" || token[0] == '[' || token[0] == '(' {
		t.literals = ""
	}
	switch {
	case translation != "":
		return translation, nil
	case token[0] == '(':
		return t.parentheses(token, o, depth)
	case token == "[":
		set, err := t.class(o, depth)
		return set.String(), err
	case token == "*" || token == "+" || token == "?":
		return "", fmt.Errorf("%s without something to repeat", token)
	case token[0] == '{': // stands for itself
		t.rest, token = token[1:]+t.rest, "{"
	}
	set, r, err := character(token)
	if err != nil || set.text != "" { // of which the case counts, as for the reference
		return set.String(), err
	}
	return t.literal(r, o)
}

// character returns the character of a token or, of an escape that stands for many, the set of these.
func character(token string) (set charSet, r rune, err error) {
	r, _ = utf8.DecodeRuneInString(token)
	if r != '\\' {
		return set, r, nil
	}
	if token == `\` {
		return set, 0, errors.New(`it ends with \`)
	}
	c, _ := utf8.DecodeRuneInString(token[1:])
	not, text := unicode.IsUpper(c), token[2:]
	switch c {
	case 'w', 'W', 'd', 'D', 's', 'S', 'h', 'H':
		name := map[rune]string{'d': "digit", 's': "space", 'h': "xdigit", 'w': "word"}[unicode.ToLower(c)]
		set, err = property(name, not, true)
		return set, 0, err
	case 'p', 'P':
		if text == "" {
			return set, 0, notSupported(token)
		}
		name, inverted := strings.CutPrefix(text[1:len(text)-1], "^")
		set, err = property(name, not != inverted, false)
		return set, 0, err
	case 't', 'n', 'r', 'f', 'v', 'a', 'e':
		return set, map[rune]rune{'t': '\t', 'n': '\n', 'r': '\r', 'f': '\f', 'v': '\v', 'a': '\a', 'e': 0x1b}[c], nil
	case 'x', 'u':
		n, err := strconv.ParseUint(strings.Trim(text, "{}"), 16, 32)
		if err != nil || !utf8.ValidRune(rune(n)) || n > unicode.MaxASCII && len(token) == len(`\xff`) { // a byte
			err = notSupported(token)
		}
		return set, rune(n), err
	}
	if c < utf8.RuneSelf && (unicode.IsLetter(c) || unicode.IsDigit(c)) || c == utf8.RuneError {
		err = notSupported(token)
	}
	return set, c, err
}

// literal returns a character, or the class of those that equal it when case is ignored.
func (t *onig) literal(r rune, o onigOptions) (string, error) {
	if o.fold {
		t.literals += strings.ToLower(string(r))
		for _, pair := range []string{"ss", "ff", "fi", "fl", "st"} { // equal one character, as ß or ﬁ
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

// parentheses translates a group that begins with a token. The options of (?i) hold up to the end of the group around.
func (t *onig) parentheses(open string, o onigOptions, depth int) (string, error) {
	last := open[len(open)-1]
	switch {
	case open == "(?" || open == "(*":
		return "", notSupported(open + t.rest[:min(1, len(t.rest))])
	case last == '(' || last == ':' || last == ')':
		on, off, _ := strings.Cut(open, "-")
		o.fold = (o.fold || strings.Contains(on, "i")) && !strings.Contains(off, "i")
		o.dotAll = (o.dotAll || strings.Contains(on, "m")) && !strings.Contains(off, "m")
		open = "(?:"
	}
	inner, err := t.group(o, depth+1)
	if err == nil && last != ')' && !t.take(")") {
		err = errors.New("( without )")
	}
	return open + inner + ")", err
}

// repeat translates the quantifiers behind an atom: several ones apply one after the other, and a + behind one that is
// no interval makes it possessive.
func (t *onig) repeat(atom string) (string, error) {
	for count := 0; ; count++ {
		q := outside.FindString(t.rest)
		interval := len(q) > 1 && q[0] == '{'
		if !interval && q != "*" && q != "+" && q != "?" {
			return atom, nil
		}
		t.next(outside)
		switch {
		case count == maxGroups:
			return "", fmt.Errorf("more than %d quantifiers in a row", maxGroups)
		case atom == "":
			return "", fmt.Errorf("%s without something to repeat", q)
		case interval && (large.MatchString(q) || strings.HasPrefix(t.rest, "?") && !strings.Contains(q, ",")):
			return "", notSupported(q + t.rest[:min(1, len(t.rest))])
		case count > 0 || !isSingle(atom):
			atom = "(?:" + atom + ")"
		}
		q = strings.Replace(q, "{,", "{0,", 1)
		switch {
		case t.take("?"):
			atom += q + "?"
		case !interval && t.take("+"):
			atom = "(?>" + atom + q + ")"
		default:
			atom += q
		}
	}
}

// isSingle reports whether a translated atom needs no group around it.
func isSingle(atom string) bool {
	_, size := utf8.DecodeRuneInString(atom)
	return len(atom) == size || atom[0] == '[' || atom[0] == '(' || atom[0] == '\\'
}
