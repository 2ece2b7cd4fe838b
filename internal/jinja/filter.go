package jinja

import (
	"strconv"
	"strings"
)

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
		switch v := v.(type) {
		case Text:
			return len(v)
		case *Dict:
			return len(v.keys)
		}
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
		if len(a.values) == len(a.names) {
			fail("map without a filter and without an attribute")
		}
		inner, rest := r.string(a, 0, "", nil).String(), args{a.values[1:], a.names}
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
	switch called {
	case "string", "safe":
		return t
	case "trim":
		called = "strip"
	case "indent":
		return r.indent(t, a)
	}
	return textMethod(t, called)(r, a)
}

// indent puts blanks before each line that is not empty, and before the first one only if an argument says so.
func (r *run) indent(t Text, a args) Text {
	width := max(0, r.integer(a, 0, "width", 4))
	r.use(len(t) + width)
	pad := Text(strings.Repeat(" ", width))
	first, _ := a.get(1, "first")
	var out Text
	for i, line := range t.split("\n", -1) {
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
