package jinja

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type kind uint8

const (
	data    kind = iota // text outside of tags
	open                // {{ or {%
	end                 // }} or %}
	name                // also keywords
	literal             // a string, without quotes and escapes
	integer
	float
	operator
	eof
)

type token struct {
	kind kind
	text string
	line int
}

// is reports whether t is an operator or a name of this text.
func (t token) is(text string) bool { return (t.kind == operator || t.kind == name) && t.text == text }

// lexer cuts a template into tokens. White space around tags goes by the rules of Jinja2's trim_blocks and
// lstrip_blocks, which are on for chat templates: a line break behind a block or comment and the blanks of its line
// before it are dropped; - at a tag drops all white space beside it, + none.
type lexer struct {
	src    string
	at     int
	line   int
	tokens []token
}

func lex(source string) []token {
	source = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(source)
	l := lexer{src: strings.TrimSuffix(source, "\n"), line: 1}
	for l.at < len(l.src) {
		l.data()
	}
	return append(l.tokens, token{eof, "the end of the template", l.line})
}

func (l *lexer) add(k kind, text string) { l.tokens = append(l.tokens, token{k, text, l.line}) }

// skip goes on by n bytes.
func (l *lexer) skip(n int) {
	l.line += strings.Count(l.src[l.at:l.at+n], "\n")
	l.at += n
}

// data reads the text before a tag, and the tag.
func (l *lexer) data() {
	rest := l.src[l.at:]
	n := nextTag(rest)
	if n < 0 {
		l.add(data, rest)
		l.skip(len(rest))
		return
	}
	text, tag, size := rest[:n], rest[n:n+2], n+2
	switch sign := rest[size:]; {
	case strings.HasPrefix(sign, "-"):
		text = strings.TrimRightFunc(text, isSpace)
		size++
	case strings.HasPrefix(sign, "+"):
		size++
	case tag != "{{":
		begin := strings.LastIndexByte(text, '\n') + 1
		if begin > 0 || l.at == 0 || l.src[l.at-1] == '\n' {
			text = text[:begin] + strings.TrimLeftFunc(text[begin:], isSpace)
			if begin < len(text) { // not only blanks
				text = rest[:n]
			}
		}
	}
	if text != "" {
		l.add(data, text)
	}
	l.skip(size)
	if tag == "{#" {
		size := strings.Index(l.src[l.at:], "#}")
		if size < 0 {
			fail("line %d: a comment without an end", l.line)
		}
		l.skip(size)
		if before := l.src[l.at-1]; before == '-' || before == '+' {
			l.at--
		}
		l.close("#}")
		return
	}
	l.add(open, tag)
	l.tag(map[string]string{"{{": "}}", "{%": "%}"}[tag])
}

// nextTag returns where the next tag begins, or -1.
func nextTag(text string) int {
	for at := 0; ; at++ {
		n := strings.IndexByte(text[at:], '{')
		if n < 0 || at+n+1 >= len(text) {
			return -1
		}
		if at += n; strings.IndexByte("{%#", text[at+1]) >= 0 {
			return at
		}
	}
}

// close skips the end of a tag and the white space that goes with it, or reports that there is none.
func (l *lexer) close(mark string) bool {
	rest := l.src[l.at:]
	sign := ""
	if strings.HasPrefix(rest, "-") || strings.HasPrefix(rest, "+") {
		sign = rest[:1]
	}
	after, ok := strings.CutPrefix(rest[len(sign):], mark)
	if !ok || sign == "+" && mark == "}}" {
		return false
	}
	switch {
	case sign == "-":
		after = strings.TrimLeftFunc(after, isSpace)
	case sign == "" && mark != "}}":
		after = strings.TrimPrefix(after, "\n")
	}
	l.skip(len(rest) - len(after))
	return true
}

// tag reads the tokens of a tag.
func (l *lexer) tag(mark string) {
	for depth := 0; ; {
		rest := l.src[l.at:]
		l.skip(len(rest) - len(strings.TrimLeftFunc(rest, isSpace)))
		if rest = l.src[l.at:]; rest == "" {
			fail("line %d: a tag without %s", l.line, mark)
		}
		line := l.line
		if depth == 0 && l.close(mark) {
			l.tokens = append(l.tokens, token{end, mark, line})
			return
		}
		switch r, _ := utf8.DecodeRuneInString(rest); {
		case r == '_' || unicode.IsLetter(r):
			l.take(name, prefix(rest, func(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }))
		case isDigit(r):
			l.number(rest)
		case r == '\'' || r == '"':
			l.literal(rest)
		default:
			op := l.operator(rest)
			l.take(operator, len(op))
			switch op {
			case "(", "[", "{":
				depth++
			case ")", "]", "}":
				depth--
			}
		}
	}
}

func (l *lexer) take(k kind, size int) {
	l.add(k, l.src[l.at:l.at+size])
	l.skip(size)
}

// prefix returns the length of the beginning of s whose characters all are of a class.
func prefix(s string, is func(rune) bool) int { return len(s) - len(strings.TrimLeftFunc(s, is)) }

func isDigit(r rune) bool { return r >= '0' && r <= '9' }

// isSpace reports whether Python takes r for white space.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

// number reads a number. Behind a dot, as in list.0.1, it is an integer.
func (l *lexer) number(rest string) {
	n := prefix(rest, isDigit)
	if len(l.tokens) > 0 && l.tokens[len(l.tokens)-1].is(".") {
		l.take(integer, n)
		return
	}
	k := integer
	if digits := strings.TrimPrefix(rest[n:], "."); len(digits) < len(rest)-n && prefix(digits, isDigit) > 0 {
		n, k = n+1+prefix(digits, isDigit), float
	}
	if rest[n:] != "" && (rest[n] == 'e' || rest[n] == 'E') {
		sign := len(rest[n+1:]) - len(strings.TrimLeft(rest[n+1:], "+-"))
		if digits := prefix(rest[n+1+sign:], isDigit); digits > 0 && sign <= 1 {
			n, k = n+1+sign+digits, float
		}
	}
	l.take(k, n)
}

func (l *lexer) operator(rest string) string {
	for _, op := range []string{"**", "//", "==", "!=", "<=", ">="} {
		if strings.HasPrefix(rest, op) {
			return op
		}
	}
	if strings.IndexByte("+-*/%~<>=()[]{}.,:|", rest[0]) < 0 {
		r, _ := utf8.DecodeRuneInString(rest)
		fail("line %d: unexpected %q", l.line, r)
	}
	return rest[:1]
}

// literal reads a string with the escapes of Python.
func (l *lexer) literal(rest string) {
	var b strings.Builder
	line := l.line
	for at := 1; at < len(rest); {
		switch c := rest[at]; {
		case c == rest[0]:
			l.skip(at + 1)
			l.tokens = append(l.tokens, token{literal, b.String(), line})
			return
		case c == '\\' && strings.HasPrefix(rest[at+1:], "\n"): // goes on in the next line
			at += 2
		case c == '\\':
			r, _, tail, err := strconv.UnquoteChar(rest[at:], rest[0])
			if err != nil && len(rest) > at+1 && (rest[at+1] == '\'' || rest[at+1] == '"') { // the other quote
				r, tail, err = rune(rest[at+1]), rest[at+2:], nil
			}
			if err != nil || !utf8.ValidRune(r) { // no escape
				b.WriteByte(c)
				at++
				continue
			}
			b.WriteRune(r)
			at = len(rest) - len(tail)
		default:
			b.WriteByte(c)
			at++
		}
	}
	fail("line %d: a string without an end", l.line)
}
