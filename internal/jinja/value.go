package jinja

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text is a string of a template: characters, of which those with the bit marked come from outside of the template.
// The bit stays with a character through all operations; comparisons ignore it.
type Text []rune

const marked = 1 << 24 // above all characters

// Mark returns a text whose characters are all marked.
func Mark(s string) Text {
	t := Text(s)
	for i := range t {
		t[i] |= marked
	}
	return t
}

// String returns the text without marks.
func (t Text) String() string {
	b := make([]byte, 0, len(t))
	for _, r := range t {
		b = utf8.AppendRune(b, r&^marked)
	}
	return string(b)
}

// Runs calls run for the longest pieces of t that are marked as a whole or not at all, in order.
func (t Text) Runs(run func(s string, isMarked bool)) {
	for len(t) > 0 {
		n, m := 1, t[0]&marked
		for n < len(t) && t[n]&marked == m {
			n++
		}
		run(t[:n].String(), m != 0)
		t = t[n:]
	}
}

func (t Text) trim(left, right bool, is func(rune) bool) Text {
	for left && len(t) > 0 && is(t[0]&^marked) {
		t = t[1:]
	}
	for right && len(t) > 0 && is(t[len(t)-1]&^marked) {
		t = t[:len(t)-1]
	}
	return t
}

func (t Text) mapped(f func(int, rune) rune) Text {
	out := make(Text, len(t))
	for i, r := range t {
		out[i] = f(i, r&^marked) | r&marked
	}
	return out
}

// split cuts t at a separator, at most n times if n >= 0.
func (t Text) split(separator string, n int) (parts []Text) {
	if n++; n <= 0 {
		n = -1
	}
	for _, part := range strings.SplitN(t.String(), separator, n) {
		size := utf8.RuneCountInString(part)
		parts, t = append(parts, t[:size:size]), t[min(len(t), size+utf8.RuneCountInString(separator)):]
	}
	return parts
}

// fields cuts t at white space.
func (t Text) fields() (parts []Text) {
	for {
		t = t.trim(true, false, isSpace)
		n := slices.IndexFunc(t, func(r rune) bool { return isSpace(r &^ marked) })
		if n < 0 {
			n = len(t)
		}
		if n == 0 {
			return parts
		}
		parts, t = append(parts, t[:n:n]), t[n:]
	}
}

// The other values are nil (none), bool, int, float64, List, *Dict, *namespace, function and undefined.
type (
	List []any
	// Dict has its keys in order.
	Dict struct {
		keys   []Text
		values map[string]any
	}
	namespace struct{ values map[string]any }
	function  func(r *run, a args) any
	undefined struct{ name string }
)

// Set adds a value, or replaces the one of an equal key.
func (d *Dict) Set(key Text, value any) {
	if d.values == nil {
		d.values = map[string]any{}
	}
	s := key.String()
	if _, ok := d.values[s]; !ok {
		d.keys = append(d.keys, key)
	}
	d.values[s] = value
}

func (d *Dict) items() List {
	all := make(List, len(d.keys))
	for i, k := range d.keys {
		all[i] = List{k, d.values[k.String()]}
	}
	return all
}

func typeName(v any) string {
	switch v := v.(type) {
	case undefined:
		return fmt.Sprintf("%s, which is undefined", v.name)
	case nil:
		return "none"
	case Text:
		return "a string"
	case List:
		return "a list"
	case *Dict:
		return "a dict"
	case function:
		return "a function"
	case *namespace:
		return "a namespace"
	}
	return fmt.Sprintf("a value of type %T", v)
}

func truth(v any) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int:
		return v != 0
	case float64:
		return v != 0
	case Text:
		return len(v) > 0
	case List:
		return len(v) > 0
	case *Dict:
		return len(v.keys) > 0
	}
	return true
}

// number returns v as a float64. As in Python, a bool is a number.
func number(v any) (float64, bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	case int:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

func (r *run) equal(a, b any) bool {
	r.enter()
	defer r.leave()
	if x, ok := number(a); ok {
		y, ok := number(b)
		return ok && x == y
	}
	switch a := a.(type) {
	case nil:
		return b == nil
	case undefined:
		_, ok := b.(undefined)
		return ok
	case Text:
		b, ok := b.(Text)
		return ok && len(a) == len(b) && compareText(a, b) == 0
	case List:
		b, ok := b.(List)
		return ok && slices.EqualFunc(a, b, r.equal)
	case *Dict:
		b, ok := b.(*Dict)
		if !ok || len(a.keys) != len(b.keys) {
			return false
		}
		for key, v := range a.values {
			if w, ok := b.values[key]; !ok || !r.equal(v, w) {
				return false
			}
		}
		return true
	case *namespace:
		b, ok := b.(*namespace)
		return ok && a == b
	}
	return false // functions
}

func compareText(a, b Text) int {
	return slices.CompareFunc(a, b, func(x, y rune) int { return cmp.Compare(x&^marked, y&^marked) })
}

// compare orders numbers or strings.
func (r *run) compare(a, b any) int {
	r.use(1)
	x, okX := number(a)
	y, okY := number(b)
	s, okS := a.(Text)
	t, okT := b.(Text)
	switch {
	case okX && okY:
		return cmp.Compare(x, y)
	case !okS || !okT:
		fail("cannot order %s and %s", typeName(a), typeName(b))
	}
	r.use(min(len(s), len(t)))
	return compareText(s, t)
}

func (r *run) contains(in, v any) bool {
	switch in := in.(type) {
	case Text:
		v, ok := v.(Text)
		if !ok {
			fail("%s in a string, want a string", typeName(v))
		}
		r.use(len(in))
		return strings.Contains(in.String(), v.String())
	case *Dict:
		v, ok := v.(Text)
		_, has := in.values[v.String()]
		return ok && has
	}
	return slices.ContainsFunc(r.elements(in), func(w any) bool { return r.equal(v, w) })
}

// elements returns what a loop over v gives.
func (r *run) elements(v any) (all List) {
	switch v := v.(type) {
	case List:
		return v
	case Text:
		r.use(workPerItem * len(v))
		for i := range v {
			all = append(all, v[i:i+1:i+1])
		}
		return all
	case *Dict:
		r.use(workPerItem * len(v.keys))
		for _, k := range v.keys {
			all = append(all, k)
		}
		return all
	case undefined:
		return nil
	}
	fail("cannot iterate over %s", typeName(v))
	return nil
}

// text returns what {{ v }} prints.
func (r *run) text(v any) Text {
	switch v := v.(type) {
	case Text:
		return v
	case undefined:
		return nil
	}
	return r.format(nil, v)
}

// format appends Python's repr of v.
func (r *run) format(t Text, v any) Text {
	r.enter()
	defer r.leave()
	r.use(workPerItem)
	switch v := v.(type) {
	case nil:
		t = append(t, Text("None")...)
	case bool:
		t = append(t, Text(map[bool]string{true: "True", false: "False"}[v])...)
	case int:
		t = append(t, Text(strconv.Itoa(v))...)
	case float64:
		t = append(t, Text(formatFloat(v))...)
	case Text:
		r.use(len(v))
		t = quote(t, v)
	case List:
		t = append(t, '[')
		for i, x := range v {
			if i > 0 {
				t = append(t, ',', ' ')
			}
			t = r.format(t, x)
		}
		t = append(t, ']')
	case *Dict:
		t = append(t, '{')
		for i, key := range v.keys {
			if i > 0 {
				t = append(t, ',', ' ')
			}
			t = append(r.format(t, key), ':', ' ')
			t = r.format(t, v.values[key.String()])
		}
		t = append(t, '}')
	default:
		fail("cannot print %s", typeName(v))
	}
	return t
}

// quote appends Python's repr of a string. An escape has the mark of its character.
func quote(t, s Text) Text {
	mark := '\''
	plain := s.String()
	if strings.Contains(plain, "'") && !strings.Contains(plain, `"`) {
		mark = '"'
	}
	t = append(t, mark)
	for _, c := range s {
		escaped := string(c &^ marked)
		switch r := c &^ marked; {
		case r == mark || r == '\\':
			escaped = `\` + escaped
		case !unicode.IsPrint(r):
			escaped = strconv.Quote(escaped)
			escaped = escaped[1 : len(escaped)-1]
			if short := map[rune]string{'\a': `\x07`, '\b': `\x08`, '\f': `\x0c`, '\v': `\x0b`}[r]; short != "" {
				escaped = short
			} else if r >= 0x80 && r < 0x100 {
				escaped = fmt.Sprintf(`\x%02x`, r)
			}
		}
		for _, e := range escaped {
			t = append(t, e|c&marked)
		}
	}
	return append(t, mark)
}

// formatFloat returns Python's repr of a number.
func formatFloat(f float64) string {
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) || math.IsInf(f, 0) || math.IsNaN(f) {
		return strings.ToLower(strings.TrimPrefix(strconv.FormatFloat(f, 'e', -1, 64), "+"))
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}
