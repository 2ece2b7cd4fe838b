package jinja

import (
	"slices"
	"strconv"
	"strings"
)

type (
	statement  func(r *run)
	expression func(r *run) any
)

type parser struct {
	tokens []token
	at     int
	depth  int
	loops  int // around the statement
}

func (p *parser) peek() token { return p.tokens[p.at] }

func (p *parser) next() token {
	t := p.tokens[p.at]
	if t.kind != eof {
		p.at++
	}
	return t
}

// accept skips the next token if it is an operator or name of one of these texts, and returns the text or "".
func (p *parser) accept(texts ...string) string {
	if t := p.peek(); (t.kind == operator || t.kind == name) && slices.Contains(texts, t.text) {
		p.at++
		return t.text
	}
	return ""
}

func (p *parser) want(text string) {
	if p.accept(text) == "" {
		p.unexpected(text)
	}
}

func (p *parser) kind(k kind, what string) token {
	t := p.next()
	if t.kind != k {
		p.at--
		p.unexpected(what)
	}
	return t
}

func (p *parser) unexpected(want string) {
	t := p.peek()
	fail("line %d: %.60q, want %s", t.line, t.text, want)
}

func (p *parser) nest() {
	if p.depth++; p.depth > maxNesting {
		fail("line %d: more than %d expressions or blocks in each other", p.peek().line, maxNesting)
	}
}

// body reads statements up to a tag that begins with one of these words, and the word.
func (p *parser) body(ends ...string) (all []statement, word string) {
	p.nest()
	defer func() { p.depth-- }()
	for {
		switch t := p.next(); {
		case t.kind == eof && len(ends) == 0:
			return all, ""
		case t.kind == eof:
			fail("line %d: the end of the template, want %s", t.line, strings.Join(ends, " or "))
		case t.kind == data:
			text := Text(t.text)
			all = append(all, func(r *run) { r.print(text) })
		case t.text == "{{":
			x := p.expression()
			p.kind(end, "}}")
			all = append(all, func(r *run) {
				r.line = t.line
				r.print(r.text(x(r)))
			})
		default:
			if word := p.accept(ends...); word != "" {
				return all, word
			}
			s := p.statement()
			p.kind(end, "%}")
			all = append(all, func(r *run) {
				r.line = t.line
				s(r)
			})
		}
	}
}

// block reads a body of a statement, between the end of its tag and one of these words.
func (p *parser) block(ends ...string) ([]statement, string) {
	p.kind(end, "%}")
	return p.body(ends...)
}

func (p *parser) statement() statement {
	switch t := p.kind(name, "a statement"); t.text {
	case "if":
		return p.ifs()
	case "for":
		return p.loop()
	case "set":
		return p.set()
	case "macro":
		return p.macro()
	case "generation":
		body, _ := p.block("endgeneration")
		return func(r *run) { r.exec(body) }
	case "break", "continue":
		if p.loops == 0 {
			fail("line %d: %s outside of a loop", t.line, t.text)
		}
		to := map[string]jump{"break": breaks, "continue": continues}[t.text]
		return func(r *run) { r.jump = to }
	default:
		fail("line %d: the statement %.60q is not supported", t.line, t.text)
		return nil
	}
}

func (p *parser) ifs() statement {
	var conditions []expression
	var bodies [][]statement
	for word := "if"; word != "endif"; {
		condition := func(*run) any { return true }
		ends := []string{"endif"}
		if word != "else" {
			condition, ends = p.expression(), []string{"elif", "else", "endif"}
		}
		var body []statement
		body, word = p.block(ends...)
		conditions, bodies = append(conditions, condition), append(bodies, body)
	}
	return func(r *run) {
		for i, c := range conditions {
			if truth(c(r)) {
				r.exec(bodies[i])
				return
			}
		}
	}
}

// targets reads the names that a loop or an assignment sets.
func (p *parser) targets() (names []string) {
	paren := p.accept("(") != ""
	for {
		names = append(names, p.kind(name, "a name").text)
		if p.accept(",") == "" {
			break
		}
	}
	if paren {
		p.want(")")
	}
	return names
}

// assign sets names: one to v, several to its elements.
func (r *run) assign(s *scope, names []string, v any) {
	if len(names) == 1 {
		s.values[names[0]] = v
		return
	}
	all := r.elements(v)
	if len(all) != len(names) {
		fail("%d values for %d names", len(all), len(names))
	}
	for i, n := range names {
		s.values[n] = all[i]
	}
}

func (p *parser) loop() statement {
	names := p.targets()
	p.want("in")
	over := p.tuple(p.or)
	var only expression
	if p.accept("if") != "" {
		only = p.expression()
	}
	if t := p.peek(); t.is("recursive") {
		fail("line %d: recursive loops are not supported", t.line)
	}
	p.loops++
	body, word := p.block("else", "endfor")
	p.loops--
	var otherwise []statement
	if word == "else" {
		otherwise, _ = p.block("endfor")
	}
	return func(r *run) {
		outer := r.scope
		all := r.elements(over(r))
		if only != nil {
			var some List
			for _, v := range all {
				r.use(workPerLoop)
				r.scope = &scope{map[string]any{}, outer}
				if r.assign(r.scope, names, v); truth(only(r)) {
					some = append(some, v)
				}
			}
			all = some
		}
		for i, v := range all {
			r.use(workPerLoop)
			r.scope = &scope{map[string]any{"loop": loopAt(all, i)}, outer}
			r.assign(r.scope, names, v)
			r.exec(body)
			if j := r.jump; j != none {
				r.jump = none
				if j == breaks {
					break
				}
			}
		}
		r.scope = outer
		if len(all) == 0 {
			r.exec(otherwise)
		}
	}
}

// loopAt returns the variable loop.
func loopAt(all List, i int) *namespace {
	v := map[string]any{
		"index": i + 1, "index0": i, "revindex": len(all) - i, "revindex0": len(all) - i - 1, "length": len(all),
		"first": i == 0, "last": i == len(all)-1, "previtem": undefined{"loop.previtem"}, "nextitem": undefined{"loop.nextitem"},
		"cycle": function(func(_ *run, a args) any {
			if len(a.values) == 0 {
				fail("cycle without values")
			}
			return a.values[i%len(a.values)]
		}),
	}
	if i > 0 {
		v["previtem"] = all[i-1]
	}
	if i+1 < len(all) {
		v["nextitem"] = all[i+1]
	}
	return &namespace{v}
}

func (p *parser) set() statement {
	names := p.targets()
	if p.accept(".") != "" {
		member := p.kind(name, "a name").text
		p.want("=")
		x := p.expression()
		return func(r *run) {
			n, ok := r.scope.get(names[0]).(*namespace)
			if !ok {
				fail("%s is no namespace", names[0])
			}
			n.values[member] = x(r)
		}
	}
	if p.accept("=") != "" {
		x := p.tuple(p.expression)
		return func(r *run) { r.assign(r.scope, names, x(r)) }
	}
	body, _ := p.block("endset")
	return func(r *run) {
		text := r.capture(body, &scope{map[string]any{}, r.scope})
		r.assign(r.scope, names, text)
	}
}

func (p *parser) macro() statement {
	called := p.kind(name, "a name").text
	var names []string
	var defaults []expression
	p.want("(")
	p.list(")", func() {
		names, defaults = append(names, p.kind(name, "a name").text), append(defaults, nil)
		if p.accept("=") != "" {
			defaults[len(defaults)-1] = p.expression()
		}
	})
	loops := p.loops
	p.loops = 0
	body, _ := p.block("endmacro")
	p.loops = loops
	return func(r *run) {
		outer := r.scope
		outer.values[called] = function(func(r *run, a args) any {
			inner := &scope{map[string]any{}, outer}
			for i, n := range names {
				v, ok := a.get(i, n)
				if !ok {
					v = undefined{n}
				}
				if !ok && defaults[i] != nil {
					v = defaults[i](r)
				}
				inner.values[n] = v
			}
			return r.capture(body, inner)
		})
	}
}

// list reads what item reads, with commas between, up to an operator.
func (p *parser) list(close string, item func()) {
	for p.accept(close) == "" {
		item()
		if p.accept(",") == "" {
			p.want(close)
			return
		}
	}
}

// tuple reads one or several expressions with commas between.
func (p *parser) tuple(one func() expression) expression {
	first := one()
	if !p.peek().is(",") {
		return first
	}
	all := []expression{first}
	for p.accept(",") != "" && p.peek().kind != end {
		all = append(all, one())
	}
	return listOf(all)
}

func listOf(all []expression) expression {
	return func(r *run) any {
		r.use(workPerItem * len(all))
		l := make(List, len(all))
		for i, x := range all {
			l[i] = x(r)
		}
		return l
	}
}

func constant(v any) expression { return func(*run) any { return v } }

func (p *parser) integer(text string) any {
	n, err := strconv.Atoi(text)
	if err != nil {
		fail("line %d: number %.60q: %v", p.peek().line, text, err)
	}
	return n
}
