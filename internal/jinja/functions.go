package jinja

import (
	"slices"
	"strings"
	"time"
	"unicode"
)

// functions returns the functions that every template may call.
func functions() map[string]any {
	return map[string]any{
		"raise_exception": function(func(r *run, a args) any {
			fail("the template says: %s", r.string(a, 0, "message", nil))
			return nil
		}),
		"strftime_now": function(func(r *run, a args) any {
			format := r.string(a, 0, "format", nil)
			text := strftime(r.now, format.String())
			if slices.ContainsFunc(format, func(c rune) bool { return c&marked != 0 }) {
				return Mark(text)
			}
			return Text(text)
		}),
		"namespace": function(func(r *run, a args) any { return &namespace{named(a).values} }),
		"dict":      function(func(r *run, a args) any { return named(a) }),
		"range": function(func(r *run, a args) any {
			from, to, step := 0, r.integer(a, 0, "", 0), r.integer(a, 2, "", 1)
			if len(a.values) > 1 {
				from, to = to, r.integer(a, 1, "", 0)
			}
			if step == 0 {
				fail("a range with the step 0")
			}
			var all List
			for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
				r.use(workPerItem)
				all = append(all, i)
			}
			return all
		}),
	}
}

// named returns the arguments that have names.
func named(a args) *Dict {
	d := &Dict{values: map[string]any{}}
	for i, n := range a.names {
		d.Set(Text(n), a.values[len(a.values)-len(a.names)+i])
	}
	return d
}

// string returns an argument that is a string. Without a default it must be there.
func (r *run) string(a args, i int, name string, otherwise Text) Text {
	v, ok := a.get(i, name)
	if !ok && otherwise != nil {
		return otherwise
	}
	t, ok := v.(Text)
	if !ok {
		fail("argument %d is %s, want a string", i+1, typeName(v))
	}
	r.use(len(t))
	return t
}

func (r *run) integer(a args, i int, name string, otherwise int) int {
	v, ok := a.get(i, name)
	if !ok || v == nil {
		return otherwise
	}
	n, ok := v.(int)
	if !ok {
		fail("argument %d is %s, want an integer", i+1, typeName(v))
	}
	return n
}

// strftime formats a time as Python does, for the directives that have the same text everywhere.
func strftime(t time.Time, format string) string {
	layouts := map[byte]string{
		'Y': "2006", 'm': "01", 'd': "02", 'B': "January", 'b': "Jan", 'A': "Monday", 'a': "Mon", 'H': "15", 'I': "03",
		'M': "04", 'S': "05", 'p': "PM", 'y': "06", 'j': "002", 'z': "-0700", 'Z': "MST",
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		switch layout := layouts[format[i]]; {
		case layout != "":
			b.WriteString(t.Format(layout))
		case format[i] == '%':
			b.WriteByte('%')
		default:
			fail("strftime_now: %%%c is not supported", format[i])
		}
	}
	return b.String()
}

// method returns a method of a string or dict, or nil.
func (r *run) method(v any, name string) any {
	var f func(r *run, a args) any
	switch v := v.(type) {
	case Text:
		f = textMethod(v, name)
	case *Dict:
		f = dictMethod(v, name)
	}
	if f == nil {
		return nil
	}
	return function(f)
}

func dictMethod(d *Dict, name string) func(r *run, a args) any {
	switch name {
	case "items", "keys", "values":
		return func(r *run, _ args) any {
			r.use(workPerLoop * len(d.keys))
			all := d.items()
			for i, item := range all {
				switch name {
				case "keys":
					all[i] = item.(List)[0]
				case "values":
					all[i] = item.(List)[1]
				}
			}
			return all
		}
	case "get":
		return func(r *run, a args) any {
			if v, ok := d.values[r.string(a, 0, "key", nil).String()]; ok {
				return v
			}
			v, _ := a.get(1, "default")
			return v
		}
	}
	return nil
}

func textMethod(t Text, name string) func(r *run, a args) any {
	affix := func(has func(s, affix string) bool) func(r *run, a args) any {
		return func(r *run, a args) any {
			r.use(len(t))
			v, _ := a.get(0, "")
			some, ok := v.(List)
			if !ok {
				some = List{r.string(a, 0, "", nil)}
			}
			for _, x := range some {
				if x, ok := x.(Text); ok && has(t.String(), x.String()) {
					return true
				}
			}
			return false
		}
	}
	changed := func(f func(Text) Text) func(r *run, a args) any {
		return func(r *run, _ args) any {
			r.use(len(t))
			return f(t)
		}
	}
	switch name {
	case "strip", "lstrip", "rstrip":
		return func(r *run, a args) any {
			r.use(len(t))
			return strip(r, t, name != "rstrip", name != "lstrip", a, 0)
		}
	case "startswith":
		return affix(strings.HasPrefix)
	case "endswith":
		return affix(strings.HasSuffix)
	case "upper":
		return changed(upper)
	case "lower":
		return changed(lower)
	case "capitalize":
		return changed(capitalize)
	case "title":
		return changed(title)
	case "replace":
		return func(r *run, a args) any { return r.replace(t, a, 0) }
	case "split", "splitlines":
		return func(r *run, a args) any {
			r.use(workPerItem * len(t))
			var parts []Text
			if separator, ok := a.get(0, "sep"); name == "splitlines" {
				parts = t.split("\n", -1)
				if last := len(parts) - 1; len(parts[last]) == 0 {
					parts = parts[:last]
				}
			} else if ok && separator != nil {
				s := r.string(a, 0, "sep", nil).String()
				if s == "" {
					fail("an empty separator")
				}
				parts = t.split(s, r.integer(a, 1, "maxsplit", -1))
			} else {
				parts = t.fields()
			}
			all := make(List, len(parts))
			for i, p := range parts {
				all[i] = p
			}
			return all
		}
	case "join":
		return func(r *run, a args) any {
			v, _ := a.get(0, "")
			return r.join(r.elements(v), t)
		}
	case "find", "count":
		return func(r *run, a args) any {
			r.use(len(t))
			parts := t.split(r.string(a, 0, "sub", nil).String(), -1)
			if name == "count" {
				return len(parts) - 1
			}
			if len(parts) == 1 {
				return -1
			}
			return len(parts[0])
		}
	}
	return nil
}

// strip drops white space, or the characters of argument i, at the ends of t.
func strip(r *run, t Text, left, right bool, a args, i int) Text {
	chars, ok := a.get(i, "chars")
	if !ok || chars == nil {
		return t.trim(left, right, isSpace)
	}
	set := r.string(a, i, "chars", nil).String()
	return t.trim(left, right, func(c rune) bool { return strings.ContainsRune(set, c) })
}

func upper(t Text) Text { return t.mapped(func(_ int, c rune) rune { return unicode.ToUpper(c) }) }

func lower(t Text) Text { return t.mapped(func(_ int, c rune) rune { return unicode.ToLower(c) }) }

func capitalize(t Text) Text {
	return t.mapped(func(i int, c rune) rune {
		if i == 0 {
			return unicode.ToTitle(c)
		}
		return unicode.ToLower(c)
	})
}

func title(t Text) Text {
	inWord := false
	return t.mapped(func(_ int, c rune) rune {
		was := inWord
		if inWord = unicode.IsLetter(c); was {
			return unicode.ToLower(c)
		}
		return unicode.ToTitle(c)
	})
}

// replace replaces the string of argument i by the next one, at most as often as the third says.
func (r *run) replace(t Text, a args, i int) Text {
	old, by := r.string(a, i, "old", nil), r.string(a, i+1, "new", nil)
	if len(old) == 0 {
		fail("cannot replace an empty string")
	}
	r.use(workPerItem * len(t))
	parts := t.split(old.String(), r.integer(a, i+2, "count", -1))
	all := make(List, len(parts))
	for j, p := range parts {
		all[j] = p
	}
	return r.join(all, by)
}

func (r *run) join(all List, separator Text) Text {
	var out Text
	for i, v := range all {
		if i > 0 {
			r.use(len(separator))
			out = append(out, separator...)
		}
		t := r.text(v)
		r.use(1 + len(t))
		out = append(out, t...)
	}
	return out
}
