package tokenizer

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// charSet is a set of characters.
type charSet struct {
	text   string // the set as regexp2 reads it inside of [ ]
	not    bool   // all others
	regexp string // instead of text, what [ ] of regexp2 can not say: it matches a character of the set
}

// String returns a regular expression that matches a character of the set.
func (s charSet) String() string {
	switch {
	case s.regexp != "":
		return s.regexp
	case s.not:
		return "[^" + s.text + "]"
	}
	return "[" + s.text + "]"
}

// invert returns all others.
func (s charSet) invert() charSet {
	if s.regexp != "" {
		return charSet{regexp: "(?:(?!" + s.regexp + `)[\s\S])`}
	}
	s.not = !s.not
	return s
}

// unite returns the union of sets. regexp2 reads no inverted set inside of a union correctly: they become alternatives.
func unite(all []charSet) charSet {
	text, others := "", []string(nil)
	for _, s := range all {
		if s.regexp == "" && !s.not {
			text += s.text
		} else {
			others = append(others, s.String())
		}
	}
	switch {
	case len(others) == 0:
		return charSet{text: text}
	case len(all) == 1:
		return all[0]
	case text != "":
		others = append(others, "["+text+"]")
	}
	return charSet{regexp: "(?:" + strings.Join(others, "|") + ")"}
}

// intersect returns the characters that two sets have.
func intersect(a, b charSet) charSet {
	if a.not {
		a, b = b, a
	}
	switch simple := a.regexp == "" && b.regexp == ""; {
	case simple && a.not: // and so is b
		return charSet{text: a.text + b.text, not: true}
	case simple && b.not:
		return charSet{regexp: "[" + a.text + "-[" + b.text + "]]"}
	}
	return charSet{regexp: "(?:(?=" + a.String() + ")" + b.String() + ")"}
}

// rangeSet returns a range of characters, with fold also those that equal one of them when case is ignored.
func rangeSet(from, to rune, fold bool) (charSet, error) {
	text := classLiteral(from)
	if to > from {
		text += "-" + classLiteral(to)
	}
	if fold && to >= unicode.MaxASCII { // some of these equal several characters
		return charSet{}, fmt.Errorf("%.20q without regard to case is not supported", text)
	}
	for c := from; fold && c <= to; c++ {
		for f := unicode.SimpleFold(c); f != c; f = unicode.SimpleFold(f) {
			text += classLiteral(f)
		}
	}
	return charSet{text: text}, nil
}

// classLiteral returns a character as it stands inside of [ ].
func classLiteral(r rune) string {
	if strings.ContainsRune(`\[]^-`, r) {
		return fmt.Sprintf(`\u%04x`, r) // regexp2 reads no range that ends with \-
	}
	return string(r)
}

// class reads a class up to its ]: the intersection of unions, or all other characters.
func (t *onig) class(o onigOptions, depth int) (set charSet, err error) {
	if depth > maxGroups {
		return set, fmt.Errorf("classes in more than %d classes", maxGroups)
	}
	t.at++
	not := t.take("^")
	var operands, union []charSet
	for first := true; t.at < len(t.pattern); first = false {
		ends := t.rest()[0] == ']' && !(first && strings.Contains(t.rest()[1:], "]"))
		if !ends && !strings.HasPrefix(t.rest(), "&&") {
			item, err := t.classItem(o, depth)
			if err != nil {
				return set, err
			}
			union = append(union, item)
			continue
		}
		if len(union) == 0 {
			return set, errors.New("an empty [ ] or operand of && is not supported")
		}
		operands, union = append(operands, unite(union)), nil
		if !ends {
			t.at += 2
			continue
		}
		t.at++
		set = operands[0]
		for _, operand := range operands[1:] {
			set = intersect(set, operand)
		}
		if not {
			set = set.invert()
		}
		return set, nil
	}
	return set, errors.New("[ without ]")
}

// classItem reads a class inside of a class, a class by name, a character or a range of characters.
func (t *onig) classItem(o onigOptions, depth int) (set charSet, err error) {
	rest := t.rest()
	if rest[0] == '[' || rest[0] == '\\' {
		if t.parts++; t.parts > maxClassParts {
			return set, fmt.Errorf("more than %d classes and escapes in [ ]", maxClassParts)
		}
	}
	if rest[0] == '[' || isClassEscape(rest) {
		if o.fold {
			return set, fmt.Errorf("%.8q in [ ] without regard to case is not supported", rest)
		}
		name, _, posix := strings.Cut(rest[1:], ":]")
		switch {
		case posix && name[0] == ':' && len(name) < 20:
			t.at += len(name) + 3
			name, not := strings.CutPrefix(name[1:], "^")
			return property(name, not, true)
		case rest[0] == '[':
			return t.class(o, depth+1)
		}
		set, err = t.classEscape()
		if rest := t.rest(); err == nil && len(rest) > 1 && rest[0] == '-' && rest[1] != ']' {
			err = fmt.Errorf("%.8q behind a class in [ ] is not supported", rest)
		}
		return set, err
	}
	from, err := t.classRune()
	to := from
	if next := t.rest(); err == nil && len(next) > 1 && next[0] == '-' && next[1] != ']' {
		if next = next[1:]; next[0] == '[' || strings.HasPrefix(next, "&&") || isClassEscape(next) {
			return set, fmt.Errorf("%.8q in [ ] is not supported", string(from)+t.rest())
		}
		t.at++
		if to, err = t.classRune(); err == nil && to < from {
			err = fmt.Errorf("%c-%c in [ ], want the smaller one first", from, to)
		}
	}
	if err != nil {
		return set, err
	}
	return rangeSet(from, to, o.fold)
}

// isClassEscape reports whether a pattern goes on with an escape that stands for many characters.
func isClassEscape(rest string) bool {
	return len(rest) > 1 && rest[0] == '\\' && strings.IndexByte("wWdDsShHpP", rest[1]) >= 0
}

// classRune reads a character inside of [ ].
func (t *onig) classRune() (rune, error) {
	switch {
	case t.take(`\b`):
		return '\b', nil
	case t.rest()[0] == '\\':
		return t.escapedRune()
	}
	return t.rune(), nil
}

// classEscape reads an escape that stands for many characters.
func (t *onig) classEscape() (charSet, error) {
	c := rune(t.rest()[1])
	t.at += 2
	not := unicode.IsUpper(c)
	name := map[rune]string{'d': "digit", 's': "space", 'h': "xdigit", 'w': "word"}[unicode.ToLower(c)]
	if name != "" {
		return property(name, not, true)
	}
	name, _, ok := strings.Cut(t.rest(), "}")
	if !ok || name[0] != '{' {
		return charSet{}, notSupported(`\` + string(c) + t.rest())
	}
	t.at += len(name) + 1
	name, inverted := strings.CutPrefix(name[1:], "^")
	return property(name, not != inverted, false)
}

const (
	wordClass = `\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}Ⓐ-ⓩ🄰-🅉🅐-🅩🅰-🆉` // \w of Oniguruma inside of [ ]
	wordMore  = `²³¹¼½¾`                                   // what \w also matches outside of [ ]
)

// property returns the class of a name in \p{ } or, if posix, in [: :].
func property(name string, not, posix bool) (charSet, error) {
	plain := plainName(name)
	short := strings.NewReplacer("alphabetic", "alpha", "lowercase", "lower", "uppercase", "upper", "whitespace", "space")
	text := map[string]string{
		"alpha":  `\p{L}\p{Nl}\p{Other_Alphabetic}`,
		"alnum":  `\p{L}\p{Nl}\p{Other_Alphabetic}\p{Nd}`,
		"ascii":  `\x00-\x7f`,
		"blank":  `\t\p{Zs}`,
		"cntrl":  `\p{Cc}`,
		"digit":  `\p{Nd}`,
		"lower":  `\p{Ll}\p{Other_Lowercase}`,
		"upper":  `\p{Lu}\p{Other_Uppercase}`,
		"punct":  `\p{P}`,
		"space":  `\s`,
		"xdigit": "0-9A-Fa-f",
		"word":   wordClass,
		"any":    "\x00-\U0010ffff",
	}[short.Replace(plain)]
	switch {
	case plain == "punct" && posix:
		text += `\p{S}`
	case text == "" && !posix:
		text = unicodeName(plain)
	}
	if text == "" {
		return charSet{}, fmt.Errorf("the class of characters %.40q is not supported", name)
	}
	return charSet{text: text, not: not}, nil
}

// plainName returns a name in lower case without what does not count in it.
func plainName(name string) string {
	return strings.ToLower(strings.NewReplacer(" ", "", "_", "", "-", "").Replace(name))
}

// unicodeName returns a category, a script or a property of Unicode for regexp2, "" if there is none of the name.
func unicodeName(plain string) string {
	for alias, name := range unicode.CategoryAliases {
		if plainName(alias) == plain {
			plain = plainName(name)
			break
		}
	}
	for _, tables := range []map[string]*unicode.RangeTable{unicode.Categories, unicode.Scripts, unicode.Properties} {
		for name := range tables {
			if plainName(name) == plain && name != "Cn" && name != "LC" {
				return `\p{` + name + `}`
			}
		}
	}
	return ""
}
