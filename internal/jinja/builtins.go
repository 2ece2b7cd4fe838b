package jinja

import (
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"
)

// functions returns the functions that every template may call.
func functions() map[string]any {
	return map[string]any{
		"raise_exception": function(func(r *run, a args) any {
			fail("the template says: %s", r.string(a, 0, "message", nil))
			return nil
		}),
		"strftime_now": function(func(r *run, a args) any {
			return Text(strftime(r.now, r.string(a, 0, "format", nil).String()))
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
				parts = t.trim(false, len(t) > 0 && t[len(t)-1]&^marked == '\n', func(c rune) bool { return c == '\n' }).split("\n", -1)
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

// filter reads a filter and its arguments.
func (p *parser) filter(of expression) expression {
	called := p.kind(name, "the name of a filter").text
	given := func(*run) args { return args{} }
	if p.accept("(") != "" {
		given = p.arguments()
	}
	return func(r *run) any {
		r.enter()
		defer r.leave()
		return r.filter(called, of(r), given(r))
	}
}

func (r *run) filter(called string, v any, a args) any {
	switch called {
	case "default", "d":
		otherwise, ok := a.get(0, "default_value")
		if !ok {
			otherwise = Text{}
		}
		falsy, _ := a.get(1, "boolean")
		if _, missing := v.(undefined); missing || truth(falsy) && !truth(v) {
			return otherwise
		}
		return v
	case "tojson":
		return r.json(v, a)
	case "trim", "upper", "lower", "capitalize", "title", "replace", "string", "safe", "indent":
		return r.textFilter(called, r.text(v), a)
	case "length", "count":
		return len(r.elements(v))
	case "items":
		if d, ok := v.(*Dict); ok {
			return dictMethod(d, "items")(r, a)
		}
		if _, ok := v.(undefined); ok {
			return List{}
		}
		fail("items of %s, want a dict", typeName(v))
	case "int", "float":
		return toNumber(called, r, v, a)
	case "list", "first", "last", "reverse":
		return r.listFilter(called, v)
	case "join":
		all := r.elements(v)
		if attribute, ok := a.get(1, "attribute"); ok {
			all = r.mapped(all, func(x any) any { return r.item(x, attribute) })
		}
		return r.join(all, r.string(a, 0, "d", Text{}))
	case "map":
		all := r.elements(v)
		if attribute, ok := a.get(len(a.values), "attribute"); ok {
			return r.mapped(all, func(x any) any { return r.item(x, attribute) })
		}
		inner, rest := r.string(a, 0, "filter", nil).String(), args{a.values[1:], a.names}
		return r.mapped(all, func(x any) any { return r.filter(inner, x, rest) })
	case "select", "reject", "selectattr", "rejectattr":
		return r.chosen(called, r.elements(v), a)
	}
	fail("the filter %.60q is not supported", called)
	return nil
}

func (r *run) mapped(all List, f func(any) any) List {
	r.use(workPerItem * len(all))
	out := make(List, len(all))
	for i, x := range all {
		out[i] = f(x)
	}
	return out
}

func (r *run) textFilter(called string, t Text, a args) any {
	r.use(len(t))
	switch called {
	case "trim":
		return strip(r, t, true, true, a, 0)
	case "upper":
		return upper(t)
	case "lower":
		return lower(t)
	case "capitalize":
		return capitalize(t)
	case "title":
		return title(t)
	case "replace":
		return r.replace(t, a, 0)
	case "indent":
		width := r.integer(a, 0, "width", 4)
		r.use(max(0, width))
		pad := Text(strings.Repeat(" ", max(0, width)))
		first, _ := a.get(1, "first")
		lines := t.split("\n", -1)
		var out Text
		for i, line := range lines {
			if i > 0 {
				out = append(out, '\n')
			}
			if (i > 0 || truth(first)) && len(line) > 0 {
				r.use(len(pad))
				out = append(out, pad...)
			}
			out = append(out, line...)
		}
		return out
	}
	return t
}

func (r *run) listFilter(called string, v any) any {
	all := r.elements(v)
	r.use(workPerItem * len(all))
	switch {
	case called == "first" && len(all) > 0:
		return all[0]
	case called == "last" && len(all) > 0:
		return all[len(all)-1]
	case called == "first" || called == "last":
		return undefined{"the " + called + " element of an empty list"}
	case called == "list":
		return append(List{}, all...)
	}
	step := -1
	if t, ok := v.(Text); ok {
		return slice(r, t, [3]*int{nil, nil, &step})
	}
	return slice(r, all, [3]*int{nil, nil, &step})
}

// toNumber converts as Python's int or float; what is no number is 0 or the first argument.
func toNumber(called string, r *run, v any, a args) any {
	f, ok := number(v)
	if t, isText := v.(Text); isText {
		r.use(len(t))
		n, err := strconv.Atoi(t.trim(true, true, isSpace).String())
		if called == "int" && err == nil {
			return n
		}
		f, err = strconv.ParseFloat(t.trim(true, true, isSpace).String(), 64)
		ok = err == nil
	}
	otherwise, has := a.get(0, "default")
	switch {
	case (!ok || called == "int" && !(f > -1<<53 && f < 1<<53)) && has:
		return otherwise
	case !ok || called == "int" && !(f > -1<<53 && f < 1<<53):
		f = 0
	}
	if called == "int" {
		return int(f)
	}
	return f
}

// chosen is select, reject, selectattr and rejectattr: the elements for which a test holds, or does not.
func (r *run) chosen(called string, all List, a args) List {
	value, at := func(x any) any { return x }, 0
	if strings.HasSuffix(called, "attr") {
		attribute := r.string(a, 0, "", nil)
		value, at = func(x any) any { return r.item(x, attribute) }, 1
	}
	holds := truth
	if len(a.values) > at {
		test := r.string(a, at, "", nil).String()
		holds = func(x any) bool { return r.test(test, x, a.values[at+1:]) }
	}
	var out List
	for _, x := range all {
		if r.use(workPerItem); holds(value(x)) == strings.HasPrefix(called, "select") {
			out = append(out, x)
		}
	}
	return out
}

// test reads a test behind "is".
func (p *parser) test(of expression) expression {
	not := p.accept("not") != ""
	called := p.kind(name, "the name of a test").text
	given := func(*run) args { return args{} }
	switch t := p.peek(); {
	case p.accept("(") != "":
		given = p.arguments()
	case t.kind == literal, t.kind == integer, t.kind == float, t.is("["), t.is("{"),
		t.kind == name && !t.is("and") && !t.is("or") && !t.is("if") && !t.is("else") && !t.is("is") && !t.is("in") &&
			!t.is("not"):
		x := p.postfix(p.primary())
		given = func(r *run) args { return args{values: []any{x(r)}} }
	}
	return func(r *run) any {
		r.enter()
		defer r.leave()
		return r.test(called, of(r), given(r).values) != not
	}
}

func (r *run) test(called string, v any, a []any) bool {
	_, isUndefined := v.(undefined)
	n, isInt := v.(int)
	_, isFloat := v.(float64)
	t, isText := v.(Text)
	_, isList := v.(List)
	_, isDict := v.(*Dict)
	b, isBool := v.(bool)
	op := map[string]string{
		"eq": "==", "equalto": "==", "==": "==", "ne": "!=", "!=": "!=", "in": "in", "lt": "<", "lessthan": "<", "<": "<",
		"le": "<=", "<=": "<=", "gt": ">", "greaterthan": ">", ">": ">", "ge": ">=", ">=": ">=", "sameas": "==",
	}[called]
	switch called {
	case "defined":
		return !isUndefined
	case "undefined":
		return isUndefined
	case "none":
		return v == nil
	case "string":
		return isText
	case "mapping":
		return isDict
	case "sequence":
		return isList || isText || isDict
	case "iterable":
		return isList || isText || isDict || isUndefined
	case "number":
		return isInt || isFloat || isBool
	case "integer":
		return isInt
	case "float":
		return isFloat
	case "boolean":
		return isBool
	case "true":
		return isBool && b
	case "false":
		return isBool && !b
	case "callable":
		_, ok := v.(function)
		return ok
	case "odd", "even":
		if !isInt {
			fail("%s of %s, want an integer", called, typeName(v))
		}
		return (n%2 != 0) == (called == "odd")
	case "lower":
		return isText && compareText(lower(t), t) == 0
	case "upper":
		return isText && compareText(upper(t), t) == 0
	}
	if op == "" {
		fail("the test %.60q is not supported", called)
	}
	if len(a) != 1 {
		fail("the test %s with %d arguments, want 1", called, len(a))
	}
	return r.holds(op, v, a[0])
}

// json returns v as Python's json.dumps(v, ensure_ascii=False) writes it.
func (r *run) json(v any, a args) Text {
	indent := -1
	if v, ok := a.get(1, "indent"); ok && v != nil {
		indent = r.integer(args{values: []any{v}}, 0, "", 0)
	}
	item, key := Text(", "), Text(": ")
	if indent >= 0 {
		item = Text(",")
	}
	if v, ok := a.get(2, "separators"); ok && v != nil {
		both := r.elements(v)
		if len(both) != 2 {
			fail("tojson: %d separators, want 2", len(both))
		}
		item, key = r.text(both[0]), r.text(both[1])
	}
	w := jsonWriter{r, item, key, indent, nil}
	w.value(v, 0)
	return w.out
}

type jsonWriter struct {
	*run
	item, key Text
	indent    int // -1: all on one line
	out       Text
}

func (w *jsonWriter) write(t ...rune) {
	w.use(len(t))
	w.out = append(w.out, t...)
}

// line begins a line, if lines are wanted.
func (w *jsonWriter) line(level int) {
	if w.indent >= 0 {
		w.use(min(w.indent, work) * level)
		w.write(Text("\n" + strings.Repeat(" ", w.indent*level))...)
	}
}

func (w *jsonWriter) value(v any, level int) {
	w.enter()
	defer w.leave()
	switch v := v.(type) {
	case nil:
		w.write(Text("null")...)
	case bool:
		w.write(Text(strconv.FormatBool(v))...)
	case int, float64:
		w.write(w.text(v)...)
	case Text:
		w.string(v)
	case List:
		w.write('[')
		for i, x := range v {
			w.element(i, level)
			w.value(x, level+1)
		}
		w.close(len(v), level, ']')
	case *Dict:
		w.write('{')
		for i, k := range v.keys {
			w.element(i, level)
			w.string(k)
			w.write(w.key...)
			w.value(v.values[k.String()], level+1)
		}
		w.close(len(v.keys), level, '}')
	default:
		fail("tojson of %s", typeName(v))
	}
}

// element begins element i of a list or dict.
func (w *jsonWriter) element(i, level int) {
	if i > 0 {
		w.write(w.item...)
	}
	w.line(level + 1)
}

func (w *jsonWriter) close(n, level int, mark rune) {
	if n > 0 {
		w.line(level)
	}
	w.write(mark)
}

// string writes t with escapes, which have the marks of their characters.
func (w *jsonWriter) string(t Text) {
	w.write('"')
	for _, c := range t {
		switch r := c &^ marked; {
		case r == '"' || r == '\\' || r < ' ':
			quoted, err := jsontext.AppendQuote(nil, string(r))
			if err != nil {
				fail("tojson: %v", err)
			}
			for _, e := range string(quoted[1 : len(quoted)-1]) {
				w.write(e | c&marked)
			}
		default:
			w.write(c)
		}
	}
	w.write('"')
}
