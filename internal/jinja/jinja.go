// Package jinja renders the Jinja templates that language models have for conversations.
//
// It is written here because a template is a stranger's program and what it prints decides which tokens a model gets.
// No Go library bounds the time and memory of a template or knows which characters of its output come from a value.
// Here a rendering has a budget, and characters keep a mark through all operations: see Text.
//
// The language is that of Jinja2 as the library transformers sets it up: expressions, if, for with break and continue,
// set, macro, generation, white space by trim_blocks and lstrip_blocks, and the filters, tests and methods that
// templates use. Values cannot be changed, but for those of a namespace. Other statements (block, call, include,
// import, extends, filter, raw, with) are errors of Parse; other filters, tests and methods are errors of Render where
// a template comes to use them.
package jinja

import (
	"errors"
	"fmt"
	"time"
)

// Bounds of templates and renderings.
const (
	maxSource   = 256 << 10 // bytes of a template
	maxDepth    = 1000      // of calls and operations in each other, in a rendering
	maxNesting  = 100       // of expressions and blocks in each other, in a template
	work        = 1 << 23   // steps of a rendering, of some ten nanoseconds or 16 bytes each: a character takes one
	workPerRune = 64        // more for each character of its values
	workPerItem = 4         // of an element of a list
	workPerLoop = 64        // of an iteration of a loop
)

// Template is a parsed template. It may be rendered concurrently.
type Template struct{ body []statement }

// Parse reads a template. Its errors name the line.
func Parse(source string) (t *Template, err error) {
	defer catch(&err)
	if len(source) > maxSource {
		return nil, fmt.Errorf("a template of %d bytes, want at most %d", len(source), maxSource)
	}
	p := &parser{tokens: lex(source)}
	body, _ := p.body()
	return &Template{body}, nil
}

// Render returns the text of the template with the given values: nil, bool, int, float64, Text, List and *Dict. A
// template that fails, or takes more time or memory than any conversation needs, is an error. now is the time of
// strftime_now.
func (t *Template) Render(values map[string]any, now time.Time) (text Text, err error) {
	r := &run{left: work, now: now}
	defer func() {
		if err != nil && r.line > 0 {
			err = fmt.Errorf("line %d: %w", r.line, err)
		}
	}()
	defer catch(&err)
	r.scope = &scope{values: functions()}
	for name, v := range values {
		r.scope.values[name] = v
		r.left += workPerRune * size(v)
	}
	r.scope = &scope{map[string]any{}, r.scope}
	r.exec(t.body)
	return r.out, nil
}

// size returns the characters of a value; a dict counts as some more.
func size(v any) (n int) {
	switch v := v.(type) {
	case Text:
		return len(v)
	case List:
		for _, x := range v {
			n += size(x)
		}
	case *Dict:
		n = workPerLoop
		for _, x := range v.values {
			n += size(x)
		}
	}
	return n
}

// failure is an error of a template. Parsers and operations panic with it; Parse and Render return it.
type failure struct{ error }

func fail(format string, a ...any) { panic(failure{fmt.Errorf(format, a...)}) }

func catch(err *error) {
	switch p := recover().(type) {
	case nil:
	case failure:
		*err = p.error
	default:
		panic(p)
	}
}

// ErrWork says that a rendering was ended because it took too much.
var ErrWork = errors.New("the template does too much, or does not end")

// run is a rendering.
type run struct {
	scope *scope
	out   Text
	left  int // of the budget
	depth int
	line  int
	jump  jump // ends the bodies up to a loop
	now   time.Time
}

type jump int

const (
	none jump = iota
	breaks
	continues
)

// use takes n from the budget.
func (r *run) use(n int) {
	if n > r.left {
		panic(failure{ErrWork})
	}
	r.left -= max(0, n)
}

// enter begins an operation, which leave ends.
func (r *run) enter() {
	if r.depth++; r.depth > maxDepth {
		fail("more than %d operations in each other", maxDepth)
	}
	r.use(2)
}

func (r *run) leave() { r.depth-- }

// exec runs statements until a break or continue.
func (r *run) exec(body []statement) {
	r.enter()
	defer r.leave()
	for _, s := range body {
		if r.use(1); r.jump != none {
			return
		}
		s(r)
	}
}

func (r *run) print(t Text) {
	r.use(len(t))
	r.out = append(r.out, t...)
}

// capture returns what body prints, in a scope of its own if values is not nil.
func (r *run) capture(body []statement, in *scope) Text {
	out, outer := r.out, r.scope
	r.out, r.scope = nil, in
	r.exec(body)
	text := r.out
	r.out, r.scope = out, outer
	return text
}

// scope has variables. Those outside are visible inside.
type scope struct {
	values map[string]any
	outer  *scope
}

func (s *scope) get(name string) any {
	for ; s != nil; s = s.outer {
		if v, ok := s.values[name]; ok {
			return v
		}
	}
	return undefined{fmt.Sprintf("%.60q", name)}
}
