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

// class reads a class behind its [, up to its ]: the intersection of unions, or all other characters.
func (t *onig) class(o onigOptions, depth int) (set charSet, err error) {
	if depth > maxGroups {
		return set, fmt.Errorf("classes in more than %d classes", maxGroups)
	}
	not := t.take("^")
	var operands, union []charSet
	for first := true; ; first = false {
		token := t.next(inside)
		ends := token == "]" && !(first && strings.Contains(t.rest, "]"))
		switch {
		case token == "":
			return set, errors.New("[ without ]")
		case !ends && token != "&&":
			item, err := t.classItem(token, o, depth)
			if err != nil {
				return set, err
			}
			union = append(union, item)
			continue
		case len(union) == 0:
			return set, errors.New("an empty [ ] or operand of && is not supported")
		}
		if operands, union = append(operands, unite(union)), nil; ends {
			break
		}
	}
	set = operands[0]
	for _, operand := range operands[1:] {
		set = intersect(set, operand)
	}
	if not {
		set = set.invert()
	}
	return set, nil
}

// classItem reads a class inside of a class, a class by name, a character or a range of characters, which begins with
// the given token.
func (t *onig) classItem(token string, o onigOptions, depth int) (set charSet, err error) {
	if token[0] == '[' || token[0] == '\\' {
		if t.parts++; t.parts > maxClassParts {
			return set, fmt.Errorf("more than %d classes and escapes in [ ]", maxClassParts)
		}
	}
	var from, to rune
	switch {
	case token == "[":
		set, err = t.class(o, depth+1)
	case token[0] == '[' && len(token) > 1:
		name, not := strings.CutPrefix(strings.Trim(token, "[:]"), "^")
		set, err = property(name, not, true)
	default:
		set, from, err = classCharacter(token)
	}
	ranges := len(t.rest) > 1 && t.rest[0] == '-' && t.rest[1] != ']'
	switch {
	case err != nil:
		return set, err
	case set != charSet{} && o.fold:
		return set, fmt.Errorf("%q in [ ] without regard to case is not supported", token)
	case set != charSet{} && ranges && token[0] != '[':
		return set, notSupported(token + "-")
	case set != charSet{}:
		return set, nil
	}
	if to = from; ranges {
		t.take("-")
		last := t.next(inside)
		set, to, err = classCharacter(last)
		if err == nil && (set != charSet{} || last[0] == '[' || last == "&&") {
			err = fmt.Errorf("%q in [ ] is not supported", token+"-"+last)
		} else if err == nil && to < from {
			err = fmt.Errorf("%c-%c in [ ], want the smaller one first", from, to)
		}
		if err != nil {
			return set, err
		}
	}
	return rangeSet(from, to, o.fold)
}

// classCharacter is character inside of [ ].
func classCharacter(token string) (charSet, rune, error) {
	if token == `\b` {
		return charSet{}, '\b', nil
	}
	return character(token)
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
