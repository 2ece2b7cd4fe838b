package jinja

import (
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

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
