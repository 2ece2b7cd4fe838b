package jinja

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
)

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
