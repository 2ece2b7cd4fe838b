package tokenizer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
)

// maxGroups bounds groups in groups and classes in classes.
const maxGroups = 100

// translate returns a pattern of regexp2 that means the same as a pattern of Oniguruma, in the syntax that the
// reference uses.
func translate(pattern string) (string, error) {
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
	computed int // classes that are written as ranges
	parts    int // classes inside of classes

	folds    map[string]bool // texts of many characters that equal one character when case is ignored
	literals string          // the last literals of a group that ignores case, in lower case
}

// onigOptions are the options of (?imx).
type onigOptions struct{ fold, dotAll, extended bool }

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

func notSupported(construct string) error { return fmt.Errorf("%s is not supported", construct) }

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
		if o.extended && t.skipSpace() {
			continue
		}
		from := t.at
		atom, err := t.atom(o, depth)
		if source := t.pattern[from:t.at]; err == nil {
			before := t.at
			if atom, err = t.repeat(atom); err == nil && t.at > before && isAnchor(source) {
				err = notSupported(fmt.Sprintf("%.20q repeated", source))
			}
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

// skipSpace skips what means nothing with the option x. It reports whether there was something.
func (t *onig) skipSpace() bool {
	c := t.rest()[0]
	if c == '#' {
		line, _, _ := strings.Cut(t.rest(), "\n")
		t.at += len(line)
		return true
	}
	space := strings.IndexByte(" \t\n\r\f\v", c) >= 0
	if space {
		t.at++
	}
	return space
}

// atom translates what a quantifier may follow.
func (t *onig) atom(o onigOptions, depth int) (string, error) {
	rest := t.rest()
	if strings.IndexByte("([.^$", rest[0]) >= 0 {
		t.literals = ""
	}
	switch c := rest[0]; c {
	case '*', '+', '?':
		return "", fmt.Errorf("%c without something to repeat", c)
	case '(':
		return t.parentheses(o, depth)
	case '[':
		c, err := t.class(depth)
		if err != nil {
			return "", err
		}
		return t.writeClass(c, o.fold)
	case '\\':
		return t.escape(o)
	case '.':
		t.at++
		if o.dotAll {
			return `[\s\S]`, nil
		}
		return ".", nil
	case '^':
		t.at++
		return `(?:\A|(?<=\n)(?!\z))`, nil
	case '$':
		t.at++
		return `(?=\n|\z)`, nil
	}
	return t.literal(t.rune(), o)
}

// literal returns a character, or the class of those that equal it when case is ignored.
func (t *onig) literal(r rune, o onigOptions) (string, error) {
	if o.fold {
		if err := t.checkFold(r); err != nil {
			return "", err
		}
	}
	if f := unicode.SimpleFold(r); o.fold && f != r {
		same := classLiteral(r)
		for ; f != r; f = unicode.SimpleFold(f) {
			same += classLiteral(f)
		}
		return "[" + same + "]", nil
	}
	if r < utf8.RuneSelf && strings.ContainsRune(`\*+?|{[()^$.# `, r) {
		return `\` + string(r), nil
	}
	return string(r), nil
}

// checkFold returns an error if a literal character without regard to case equals several characters, or does so
// together with those before it.
func (t *onig) checkFold(r rune) error {
	if t.folds == nil {
		t.folds = map[string]bool{}
		fold := cases.Fold()
		for _, r := range "ßİŉǰΐΰևẖẗẘẙẚẞ" {
			t.folds[fold.String(string(r))] = true
		}
		for _, ends := range [][2]rune{{0x1f50, 0x1fff}, {0xfb00, 0xfb17}} {
			for r := ends[0]; r <= ends[1]; r++ {
				t.folds[fold.String(string(r))] = true
			}
		}
	}
	text := cases.Fold().String(string(r))
	t.literals += text
	for from := range t.literals {
		if last := t.literals[from:]; t.folds[last] && utf8.RuneCountInString(last) > 1 {
			return notSupported(fmt.Sprintf("%q without regard to case", last))
		}
	}
	if len(t.literals) > 16 {
		t.literals = text
	}
	return nil
}

// parentheses translates a group.
func (t *onig) parentheses(o onigOptions, depth int) (string, error) {
	open := "(?:"
	switch rest := t.rest(); {
	case t.take("(?#"):
		_, _, ok := strings.Cut(t.rest(), ")")
		if !ok {
			return "", errors.New("(?# without )")
		}
		t.at += strings.IndexByte(t.rest(), ')') + 1
		return "", nil
	case t.take("(?:"):
	case t.take("(?="), t.take("(?!"), t.take("(?<="), t.take("(?<!"), t.take("(?>"):
		open = rest[:len(rest)-len(t.rest())]
	case t.take("(?<"): // a name, which nothing can refer to
		name, _, ok := strings.Cut(t.rest(), ">")
		if !ok || name == "" || strings.ContainsAny(name, "()") {
			return "", notSupported(fmt.Sprintf("%.8q", rest))
		}
		t.at += len(name) + 1
	case t.take("(?"):
		bare, err := t.options(&o)
		if err != nil {
			return "", err
		}
		if bare { // up to the end of the group around
			inner, err := t.group(o, depth+1)
			return open + inner + ")", err
		}
	case strings.HasPrefix(rest, "(*"):
		return "", notSupported("(*")
	default:
		t.at++
	}
	inner, err := t.group(o, depth+1)
	if err == nil && !t.take(")") {
		err = errors.New("( without )")
	}
	return open + inner + ")", err
}

// options reads the options of (?i:...) or (?i), behind the question mark. bare says that it is the latter.
func (t *onig) options(o *onigOptions) (bare bool, err error) {
	from, on := t.at-2, true
	for t.at < len(t.pattern) {
		switch t.rune() {
		case 'i':
			o.fold = on
		case 'm':
			o.dotAll = on
		case 'x':
			o.extended = on
		case '-':
			on = false
		case ':':
			return false, nil
		case ')':
			return true, nil
		default:
			return false, notSupported(fmt.Sprintf("%.8q", t.pattern[from:t.at]))
		}
	}
	return false, notSupported(fmt.Sprintf("%.8q", t.pattern[from:]))
}

// repeat translates the quantifiers behind an atom: several ones apply one after the other, and a + behind one makes it
// possessive.
func (t *onig) repeat(atom string) (string, error) {
	for count := 0; t.at < len(t.pattern); count++ {
		q, interval := "", false
		switch c := t.rest()[0]; c {
		case '*', '+', '?':
			q = string(c)
			t.at++
		case '{':
			var err error
			if q, err = t.interval(); err != nil || q == "" {
				return atom, err
			}
			interval = true
		default:
			return atom, nil
		}
		if count == maxGroups {
			return "", fmt.Errorf("more than %d quantifiers in a row", maxGroups)
		}
		if atom == "" {
			return "", fmt.Errorf("%s without something to repeat", q)
		}
		switch {
		case t.take("?"):
			q += "?"
			atom = "(?:" + atom + ")" + q
		case !interval && t.take("+"):
			atom = "(?>(?:" + atom + ")" + q + ")"
		default:
			if count > 0 || !single(atom) {
				atom = "(?:" + atom + ")"
			}
			atom += q
		}
	}
	return atom, nil
}

// single reports whether a translated atom needs no group around it.
func single(atom string) bool {
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
		return "", notSupported(fmt.Sprintf("%.20q", "{"+inner+"}"))
	}
	t.at += len(inner) + 2
	switch {
	case !two && strings.HasPrefix(t.rest(), "?"):
		return "", notSupported(fmt.Sprintf("%.20q", "{"+inner+"}?"))
	case !two:
		return fmt.Sprintf("{%d}", n), nil
	case high == "":
		return fmt.Sprintf("{%d,}", n), nil
	}
	return fmt.Sprintf("{%d,%d}", n, m), nil
}
