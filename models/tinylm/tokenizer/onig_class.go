package tokenizer

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// Bounds of a pattern: to compute a class takes milliseconds, and a tenth of one for each class inside of it.
const (
	maxComputed   = 64
	maxClassParts = 2000
)

// charClass is a set of characters in [ ]: the intersection of unions, or all others.
type charClass struct {
	not      bool
	operands [][]classItem
}

// classItem is a part of a union.
type classItem struct {
	text   string          // for regexp2, inside of [ ]; "": it must be computed
	add    func(s runeSet) // adds the characters to a set
	nested *charClass      // instead of text
}

func rangeItem(from, to rune) classItem {
	text := classLiteral(from)
	if to > from {
		text += "-" + classLiteral(to)
	}
	return classItem{text: text, add: func(s runeSet) { s.addRange(from, to) }}
}

// classLiteral returns a character as it stands inside of [ ].
func classLiteral(r rune) string {
	if strings.ContainsRune(`\[]^-`, r) {
		return fmt.Sprintf(`\u%04x`, r) // regexp2 reads no range that ends with \-
	}
	return string(r)
}

// tableItem is the characters of tables, or all others. text is its name for regexp2.
func tableItem(text string, not bool, tables ...*unicode.RangeTable) classItem {
	return classItem{text: text, add: func(s runeSet) {
		if !not {
			s.addTables(tables...)
			return
		}
		all := newRuneSet()
		all.addTables(tables...)
		all.invert()
		s.union(all)
	}}
}

// class reads a class, up to its ].
func (t *onig) class(depth int) (*charClass, error) {
	if depth > maxGroups {
		return nil, fmt.Errorf("classes in more than %d classes", maxGroups)
	}
	t.at++
	c := &charClass{not: t.take("^"), operands: [][]classItem{nil}}
	for first := true; t.at < len(t.pattern); first = false {
		last := &c.operands[len(c.operands)-1]
		switch {
		case t.rest()[0] == ']' && !(first && strings.Contains(t.rest()[1:], "]")):
			t.at++
			if len(*last) == 0 {
				return nil, errors.New("an empty [ ] or operand of && is not supported")
			}
			return c, nil
		case t.take("&&"):
			if len(*last) == 0 {
				return nil, errors.New("an empty operand of && is not supported")
			}
			c.operands = append(c.operands, nil)
			continue
		}
		item, err := t.classItem(depth)
		if err != nil {
			return nil, err
		}
		*last = append(*last, item)
	}
	return nil, errors.New("[ without ]")
}

// classItem reads a class inside of a class, a class by name, a character or a range of characters.
func (t *onig) classItem(depth int) (classItem, error) {
	rest := t.rest()
	if rest[0] == '[' || rest[0] == '\\' {
		if t.parts++; t.parts > maxClassParts {
			return classItem{}, fmt.Errorf("more than %d classes and escapes in [ ]", maxClassParts)
		}
	}
	if strings.HasPrefix(rest, "[:") {
		if name, _, ok := strings.Cut(rest[2:], ":]"); ok && len(name) < 20 {
			t.at += len(name) + 4
			name, not := strings.CutPrefix(name, "^")
			return property(name, not, true)
		}
	}
	if rest[0] == '[' {
		inner, err := t.class(depth + 1)
		return classItem{nested: inner}, err
	}
	if isClassEscape(rest) {
		item, err := t.classEscape()
		if rest := t.rest(); err == nil && len(rest) > 1 && rest[0] == '-' && rest[1] != ']' {
			err = notSupported(fmt.Sprintf("%.8q behind a class in [ ]", rest))
		}
		return item, err
	}
	from, err := t.classRune()
	if err != nil || !strings.HasPrefix(t.rest(), "-") || len(t.rest()) < 2 || t.rest()[1] == ']' {
		return rangeItem(from, from), err
	}
	if next := t.rest()[1:]; next[0] == '[' || strings.HasPrefix(next, "&&") || isClassEscape(next) {
		return classItem{}, notSupported(fmt.Sprintf("%.8q in [ ]", string(from)+t.rest()))
	}
	t.at++
	to, err := t.classRune()
	if err == nil && to < from {
		err = fmt.Errorf("%c-%c in [ ], want the smaller one first", from, to)
	}
	return rangeItem(from, to), err
}

// isClassEscape reports whether a pattern goes on with an escape that stands for many characters.
func isClassEscape(rest string) bool {
	return len(rest) > 1 && rest[0] == '\\' && strings.IndexByte("wWdDsShHpP", rest[1]) >= 0
}

// classRune reads a character inside of [ ].
func (t *onig) classRune() (rune, error) {
	rest := t.rest()
	switch {
	case rest[0] != '\\':
		return t.rune(), nil
	case len(rest) < 2:
		return 0, errors.New(`it ends with \`)
	case rest[1] == 'b':
		t.at += 2
		return '\b', nil
	}
	return t.escapedRune()
}

// classEscape reads an escape that stands for many characters.
func (t *onig) classEscape() (classItem, error) {
	c := t.rest()[1]
	t.at += 2
	not := unicode.IsUpper(rune(c))
	switch unicode.ToLower(rune(c)) {
	case 'd':
		return tableItem(`\`+string(c), not, unicode.Nd), nil
	case 's':
		return tableItem(`\`+string(c), not, unicode.White_Space), nil
	case 'h':
		return property("xdigit", not, true)
	case 'w':
		return property("word", not, true)
	}
	name, _, ok := strings.Cut(t.rest(), "}")
	if !ok || name[0] != '{' {
		return classItem{}, notSupported(fmt.Sprintf("%.8q", `\`+string(c)+t.rest()))
	}
	t.at += len(name) + 1
	name = name[1:]
	if inner, found := strings.CutPrefix(name, "^"); found {
		name, not = inner, !not
	}
	return property(name, not, false)
}

// property returns the class of a name in \p{ } or, if posix, in [: :].
func property(name string, not, posix bool) (classItem, error) {
	plain := plainName(name)
	alphabetic := []*unicode.RangeTable{unicode.L, unicode.Nl, unicode.Other_Alphabetic}
	var tables []*unicode.RangeTable
	text := ""
	switch plain {
	case "alpha", "alphabetic":
		tables = alphabetic
	case "alnum":
		tables = append(alphabetic, unicode.Nd)
	case "ascii":
		tables, text = ranges(0, 0x7f), "\\x00-\\x7f"
	case "blank":
		tables = append(ranges('\t', '\t'), unicode.Zs)
	case "cntrl":
		tables = []*unicode.RangeTable{unicode.Cc}
	case "digit":
		tables, text = []*unicode.RangeTable{unicode.Nd}, `\d`
	case "lower", "lowercase":
		tables = []*unicode.RangeTable{unicode.Ll, unicode.Other_Lowercase}
	case "upper", "uppercase":
		tables = []*unicode.RangeTable{unicode.Lu, unicode.Other_Uppercase}
	case "punct":
		tables = []*unicode.RangeTable{unicode.P}
		if posix {
			tables = append(tables, unicode.S)
		}
	case "space", "whitespace":
		tables, text = []*unicode.RangeTable{unicode.White_Space}, `\s`
	case "xdigit":
		tables, text = ranges('0', '9', 'A', 'F', 'a', 'f'), "0-9A-Fa-f"
	case "word":
		tables, text = []*unicode.RangeTable{unicode.L, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc, letteredCircles}, wordClass
	case "any":
		tables = ranges(0, unicode.MaxRune)
	}
	if tables == nil && !posix {
		tables, text = namedTable(plain)
	}
	if tables == nil {
		return classItem{}, notSupported(fmt.Sprintf("the class of characters %.40q", name))
	}
	switch {
	case not && strings.LastIndexByte(text, '\\') == 0 && (len(text) == 2 || text[len(text)-1] == '}'):
		text = `\` + strings.ToUpper(text[1:2]) + text[2:]
	case not:
		text = ""
	}
	return tableItem(text, not, tables...), nil
}

// letteredCircles are letters in circles and squares, which are words.
var letteredCircles = &unicode.RangeTable{
	R16: []unicode.Range16{{'Ⓐ', 'ⓩ', 1}}, R32: []unicode.Range32{{'🄰', '🅉', 1}, {'🅐', '🅩', 1}, {'🅰', '🆉', 1}},
}

// ranges returns a table of ranges of characters.
func ranges(ends ...rune) []*unicode.RangeTable {
	t := new(unicode.RangeTable)
	for i := 0; i < len(ends); i += 2 {
		t.R32 = append(t.R32, unicode.Range32{Lo: uint32(ends[i]), Hi: uint32(ends[i+1]), Stride: 1})
	}
	return []*unicode.RangeTable{t}
}

// plainName returns a name in lower case without what does not count in it.
func plainName(name string) string {
	return strings.ToLower(strings.NewReplacer(" ", "", "_", "", "-", "").Replace(name))
}

// namedTable returns the table of a category, a script or a property of Unicode, and its name for regexp2.
func namedTable(plain string) ([]*unicode.RangeTable, string) {
	for alias, name := range unicode.CategoryAliases {
		if plainName(alias) == plain {
			plain = plainName(name)
			break
		}
	}
	for _, tables := range []map[string]*unicode.RangeTable{unicode.Categories, unicode.Scripts, unicode.Properties} {
		for name, table := range tables {
			if plainName(name) == plain && (name != "Cn" && name != "LC") {
				return []*unicode.RangeTable{table}, `\p{` + name + `}`
			}
		}
	}
	return nil, ""
}

// writeClass returns a class for regexp2. With fold it has the characters that equal those of the class when case is
// ignored.
func (t *onig) writeClass(c *charClass, fold bool) (string, error) {
	if text, ok := c.plain(); ok && !fold {
		return text, nil
	}
	if t.computed++; t.computed > maxComputed {
		return "", fmt.Errorf("more than %d classes with classes inside or without regard to case", maxComputed)
	}
	s := c.set()
	if fold { // the whole class, but not what is inverted in it
		if c.not {
			s.invert()
		}
		s.fold()
		if c.not {
			s.invert()
		}
	}
	text := s.ranges()
	if text == "" {
		return `(?!)`, nil
	}
	return "[" + text + "]", nil
}

// plain returns a class as regexp2 can write it: [a], [^a], or one of them without another, as [a-[b]].
func (c *charClass) plain() (string, bool) {
	base, not, ok := plainUnion(c.operands[0])
	if c.not {
		ok, not = ok && len(c.operands) == 1, !not
	}
	without := ""
	for _, operand := range c.operands[1:] {
		others, inverted, plain := plainUnion(operand)
		switch {
		case !plain || !inverted && len(c.operands) > 2:
			return "", false
		case inverted:
			without += others
		default:
			without = "^" + others
		}
	}
	if !ok || mixes(base) || mixes(without) {
		return "", false
	}
	if not {
		base = "^" + base
	}
	if without != "" {
		base += "-[" + without + "]"
	}
	return "[" + base + "]", true
}

// mixes reports whether a union has an inverted class and another: regexp2 looks only at the first of them that has a
// character or, inverted, has it not.
func mixes(text string) bool {
	inverted := strings.Contains(text, `\P`) || strings.Contains(text, `\S`) || strings.Contains(text, `\D`)
	return inverted && strings.Count(text, `\`) > 1
}

// plainUnion returns the text of a union, or of all that is not in it.
func plainUnion(items []classItem) (text string, not, ok bool) {
	if len(items) == 1 && items[0].nested != nil && len(items[0].nested.operands) == 1 {
		text, not, ok = plainUnion(items[0].nested.operands[0])
		return text, not != items[0].nested.not, ok
	}
	for _, item := range items {
		inner := item.text
		if item.nested != nil && len(item.nested.operands) == 1 && !item.nested.not {
			nested, inverted, ok := plainUnion(item.nested.operands[0])
			if ok && !inverted {
				inner = nested
			}
		}
		if inner == "" {
			return "", false, false
		}
		text += inner
	}
	return text, false, true
}

// set computes the characters of a class.
func (c *charClass) set() runeSet {
	var all runeSet
	for i, operand := range c.operands {
		s := newRuneSet()
		for _, item := range operand {
			if item.nested != nil {
				s.union(item.nested.set())
			} else {
				item.add(s)
			}
		}
		if i == 0 {
			all = s
		} else {
			all.intersect(s)
		}
	}
	if c.not {
		all.invert()
	}
	return all
}
