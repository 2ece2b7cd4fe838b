package jinja

import (
	"math"
	"strconv"
)

// expression reads an expression, in the order of precedence of Jinja2: if, or, and, not, comparisons, + -, ~, * / // %,
// **, signs, then what follows a value.
func (p *parser) expression() expression {
	p.nest()
	defer func() { p.depth-- }()
	x := p.or()
	for p.accept("if") != "" {
		then, condition := x, p.or()
		otherwise := constant(undefined{"the value of an if without else"})
		if p.accept("else") != "" {
			otherwise = p.expression()
		}
		x = func(r *run) any {
			if truth(condition(r)) {
				return then(r)
			}
			return otherwise(r)
		}
	}
	return x
}

func (p *parser) or() expression {
	x := p.and()
	for p.accept("or") != "" {
		left, right := x, p.and()
		x = func(r *run) any {
			if v := left(r); truth(v) {
				return v
			}
			return right(r)
		}
	}
	return x
}

func (p *parser) and() expression {
	x := p.not()
	for p.accept("and") != "" {
		left, right := x, p.not()
		x = func(r *run) any {
			if v := left(r); !truth(v) {
				return v
			}
			return right(r)
		}
	}
	return x
}

func (p *parser) not() expression {
	p.nest()
	defer func() { p.depth-- }()
	if p.accept("not") != "" {
		x := p.not()
		return func(r *run) any { return !truth(x(r)) }
	}
	return p.comparison()
}

// comparison reads a chain of comparisons: a < b < c is a < b and b < c.
func (p *parser) comparison() expression {
	operands, ops := []expression{p.sum()}, []string(nil)
	for {
		op := p.accept("==", "!=", "<", "<=", ">", ">=", "in")
		if p.peek().is("not") && p.tokens[p.at+1].is("in") {
			p.at += 2
			op = "not in"
		}
		if op == "" {
			break
		}
		ops, operands = append(ops, op), append(operands, p.sum())
	}
	if len(ops) == 0 {
		return operands[0]
	}
	return func(r *run) any {
		left := operands[0](r)
		for i, op := range ops {
			right := operands[i+1](r)
			if !r.holds(op, left, right) {
				return false
			}
			left = right
		}
		return true
	}
}

func (r *run) holds(op string, a, b any) bool {
	switch op {
	case "==":
		return r.equal(a, b)
	case "!=":
		return !r.equal(a, b)
	case "in":
		return r.contains(b, a)
	case "not in":
		return !r.contains(b, a)
	case "<":
		return r.compare(a, b) < 0
	case "<=":
		return r.compare(a, b) <= 0
	case ">":
		return r.compare(a, b) > 0
	}
	return r.compare(a, b) >= 0
}

// chain reads operands with operators between them, which group to the left.
func (p *parser) chain(operand func() expression, ops ...string) expression {
	x := operand()
	for op := p.accept(ops...); op != ""; op = p.accept(ops...) {
		left, right := x, operand()
		x = func(r *run) any {
			r.enter()
			defer r.leave()
			return r.binary(op, left(r), right(r))
		}
	}
	return x
}

func (p *parser) sum() expression     { return p.chain(p.join, "+", "-") }
func (p *parser) join() expression    { return p.chain(p.product, "~") }
func (p *parser) product() expression { return p.chain(p.power, "*", "/", "//", "%") }
func (p *parser) power() expression {
	return p.chain(func() expression { return p.unary(true) }, "**")
}

func (r *run) binary(op string, a, b any) any {
	if op == "~" {
		return r.concat(r.text(a), r.text(b))
	}
	s, okS := a.(Text)
	t, okT := b.(Text)
	k, okK := a.(List)
	l, okL := b.(List)
	n, okN := b.(int)
	switch {
	case op == "+" && okS && okT:
		return r.concat(s, t)
	case op == "+" && okK && okL:
		r.use(workPerItem * (len(k) + len(l)))
		return append(append(List{}, k...), l...)
	case op == "*" && okS && okN:
		r.use(min(max(0, n), work) * max(1, len(s)))
		var out Text
		for range n {
			out = append(out, s...)
		}
		return out
	}
	x, okX := number(a)
	y, okY := number(b)
	if !okX || !okY {
		fail("%s %s %s is not supported", typeName(a), op, typeName(b))
	}
	if y == 0 && (op == "/" || op == "//" || op == "%") {
		fail("division by zero")
	}
	_, isFloat := a.(float64)
	if _, ok := b.(float64); ok {
		isFloat = true
	}
	var f float64
	switch op {
	case "+":
		f = x + y
	case "-":
		f = x - y
	case "*":
		f = x * y
	case "/":
		return x / y
	case "//":
		f = math.Floor(x / y)
	case "%":
		f = x - y*math.Floor(x/y)
	case "**":
		f, isFloat = math.Pow(x, y), isFloat || y < 0
	}
	if isFloat {
		return f
	}
	if math.Abs(f) > 1<<53 {
		fail("%v %s %v is too large", a, op, b)
	}
	return int(f)
}

func (r *run) concat(a, b Text) Text {
	r.use(len(a) + len(b))
	return append(append(make(Text, 0, len(a)+len(b)), a...), b...)
}

func (p *parser) unary(filters bool) expression {
	p.nest()
	defer func() { p.depth-- }()
	var x expression
	if op := p.accept("-", "+"); op != "" {
		of := p.unary(false)
		x = func(r *run) any {
			v := of(r)
			if f, ok := v.(float64); ok && op == "-" {
				return -f // 0 - 0.0 has another sign
			}
			return r.binary(op, 0, v)
		}
	} else {
		x = p.primary()
	}
	x = p.postfix(x)
	for filters {
		switch {
		case p.accept("|") != "":
			x = p.filter(x)
		case p.accept("is") != "":
			x = p.test(x)
		case p.peek().is("("):
			x = p.postfix(x)
		default:
			return x
		}
	}
	return x
}

func (p *parser) primary() expression {
	switch t := p.next(); {
	case t.kind == name:
		switch t.text {
		case "true", "True":
			return constant(true)
		case "false", "False":
			return constant(false)
		case "none", "None":
			return constant(nil)
		}
		return func(r *run) any {
			r.use(1)
			return r.scope.get(t.text)
		}
	case t.kind == literal:
		text := Text(t.text)
		for p.peek().kind == literal {
			text = append(text, Text(p.next().text)...)
		}
		return constant(text)
	case t.kind == integer:
		return constant(p.integer(t.text))
	case t.kind == float:
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			fail("line %d: %v", t.line, err)
		}
		return constant(f)
	case t.is("("):
		var all []expression
		comma := false
		p.list(")", func() {
			all = append(all, p.expression())
			comma = comma || p.peek().is(",")
		})
		if len(all) == 1 && !comma {
			return all[0]
		}
		return listOf(all)
	case t.is("["):
		var all []expression
		p.list("]", func() { all = append(all, p.expression()) })
		return listOf(all)
	case t.is("{"):
		var keys, values []expression
		p.list("}", func() {
			keys = append(keys, p.expression())
			p.want(":")
			values = append(values, p.expression())
		})
		return func(r *run) any {
			d := &Dict{}
			r.use(workPerLoop + workPerLoop*len(keys))
			for i, k := range keys {
				key, ok := k(r).(Text)
				if !ok {
					fail("a key of a dict that is no string")
				}
				d.Set(key, values[i](r))
			}
			return d
		}
	default:
		p.at--
		p.unexpected("a value")
		return nil
	}
}

// postfix reads members, elements, slices and calls behind a value.
func (p *parser) postfix(x expression) expression {
	for {
		of := x
		switch p.accept(".", "[", "(") {
		case ".":
			t := p.next()
			if t.kind == integer {
				i := p.integer(t.text)
				x = func(r *run) any { return r.item(of(r), i) }
				continue
			}
			p.at--
			member := Text(p.kind(name, "a name").text)
			x = func(r *run) any {
				v := of(r)
				if m := r.method(v, member.String()); m != nil {
					return m
				}
				return r.item(v, member)
			}
		case "[":
			x = p.element(of)
		case "(":
			given := p.arguments()
			x = func(r *run) any {
				r.enter()
				defer r.leave()
				f, ok := of(r).(function)
				if !ok {
					fail("cannot call %s", typeName(of(r)))
				}
				return f(r, given(r))
			}
		default:
			return x
		}
	}
}

// element reads an index or a slice.
func (p *parser) element(of expression) expression {
	var parts [3]expression
	n := 0
	for ; n < 3; n++ {
		if !p.peek().is(":") && !p.peek().is("]") {
			parts[n] = p.expression()
		}
		if p.accept(":") == "" {
			break
		}
	}
	p.want("]")
	if n == 0 {
		if parts[0] == nil {
			p.unexpected("an index before it")
		}
		return func(r *run) any {
			v, key := of(r), parts[0](r)
			got := r.item(v, key)
			if s, ok := key.(Text); ok {
				if _, missing := got.(undefined); missing {
					if m := r.method(v, s.String()); m != nil {
						return m
					}
				}
			}
			return got
		}
	}
	return func(r *run) any {
		v := of(r)
		var bounds [3]*int
		for i, part := range parts {
			if part == nil {
				continue
			}
			b := part(r)
			if n, ok := b.(int); ok {
				bounds[i] = &n
			} else if b != nil {
				fail("%s as a bound of a slice", typeName(b))
			}
		}
		switch v := v.(type) {
		case Text:
			return slice(r, v, bounds)
		case List:
			return slice(r, v, bounds)
		}
		fail("cannot slice %s", typeName(v))
		return nil
	}
}

// slice returns the elements of v from a bound to another, by a step, as Python does.
func slice[S ~[]E, E any](r *run, v S, bounds [3]*int) S {
	step := 1
	if bounds[2] != nil {
		step = *bounds[2]
	}
	if step == 0 {
		fail("a slice with the step 0")
	}
	low, high := 0, len(v)
	if step < 0 {
		low, high = -1, len(v)-1
	}
	at := func(bound *int, otherwise int) int {
		if bound == nil {
			return otherwise
		}
		n := *bound
		if n < 0 {
			n += len(v)
		}
		return min(max(n, low), high)
	}
	from, to := at(bounds[0], low), at(bounds[1], high)
	if step < 0 {
		from, to = at(bounds[0], high), at(bounds[1], low)
	}
	var out S
	step = min(max(step, -len(v)-1), len(v)+1)
	for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
		out = append(out, v[i])
	}
	r.use(workPerItem * len(out))
	return out
}

// item returns v[key].
func (r *run) item(v, key any) any {
	n, isInt := key.(int)
	k, isText := key.(Text)
	at := func(length int) int {
		if n < 0 {
			n += length
		}
		if n < 0 || n >= length {
			return -1
		}
		return n
	}
	missing := undefined{"an element"}
	if isText {
		missing.name = strconv.Quote(k.String())
	}
	switch v := v.(type) {
	case undefined:
		fail("cannot take %s of %s", missing.name, typeName(v))
	case List:
		if i := at(len(v)); isInt && i >= 0 {
			return v[i]
		}
	case Text:
		if i := at(len(v)); isInt && i >= 0 {
			return v[i : i+1 : i+1]
		}
	case *Dict:
		if x, ok := v.values[k.String()]; isText && ok {
			return x
		}
	case *namespace:
		if x, ok := v.values[k.String()]; isText && ok {
			return x
		}
	}
	return missing
}

// args are the arguments of a call: values, of which those behind the first ones have names.
type args struct {
	values []any
	names  []string // of the last values
}

// get returns the argument at i or of a name, unless it is missing.
func (a args) get(i int, name string) (any, bool) {
	positional := len(a.values) - len(a.names)
	if i < positional {
		return a.values[i], true
	}
	for j, n := range a.names {
		if n == name {
			return a.values[positional+j], true
		}
	}
	return nil, false
}

// arguments reads arguments behind "(".
func (p *parser) arguments() func(r *run) args {
	var all []expression
	var names []string
	p.list(")", func() {
		if t := p.peek(); t.kind == name && p.tokens[p.at+1].is("=") {
			names = append(names, t.text)
			p.at += 2
		} else if len(names) > 0 {
			p.unexpected("an argument with a name")
		}
		all = append(all, p.expression())
	})
	values := listOf(all)
	return func(r *run) args { return args{values(r).(List), names} }
}
