package corpus

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// defaultField is the field or column of the text, unless Options.TextField names another.
const defaultField = "text"

// walker follows JSON byte by byte. What is not read must not decide whether a text is used, so it looks at strings and
// brackets alone: it takes what Python writes (NaN, unpaired surrogates, repeated names) and nesting of any depth.
type walker struct {
	depth           int
	quoted, escaped bool
}

// ends takes the next byte of a value. It reports whether this is the last one, which no number or word has.
func (w *walker) ends(c byte) bool {
	if w.quoted {
		switch {
		case w.escaped:
			w.escaped = false
		case c == '\\':
			w.escaped = true
		case c == '"':
			w.quoted = false
			return w.depth == 0
		}
		return false
	}
	switch c {
	case '"':
		w.quoted = true
	case '{', '[':
		w.depth++
	case '}', ']':
		w.depth--
		return w.depth == 0
	}
	return false
}

// endsWord reports whether a byte, one of those in ends, ends a number or word before it.
func (w *walker) endsWord(c byte, ends string) bool {
	return w.depth <= 0 && !w.quoted && strings.IndexByte(ends, c) >= 0
}

// jsonScanner walks over the values of JSON.
type jsonScanner struct {
	b  []byte
	at int
}

// next skips white space and returns the next byte, 0 at the end.
func (s *jsonScanner) next() byte {
	for ; s.at < len(s.b); s.at++ {
		if c := s.b[s.at]; c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			return c
		}
	}
	return 0
}

// take skips white space and the byte c. It reports whether that is the next one.
func (s *jsonScanner) take(c byte) bool {
	if s.next() != c {
		return false
	}
	s.at++
	return true
}

// value skips a value and returns it, or nil if it does not end.
func (s *jsonScanner) value() []byte {
	s.next()
	from, w := s.at, walker{}
	for i, c := range s.b[from:] {
		if s.at = from + i; w.endsWord(c, "}],: \t\r\n") {
			return s.b[from:s.at:s.at]
		}
		if s.at++; w.ends(c) {
			return s.b[from:s.at:s.at]
		}
	}
	if w.depth > 0 || w.quoted {
		return nil
	}
	return s.b[from:]
}

// items calls item at the beginning of each item of an object {} or a list []. It reports whether item always returns
// true and nothing else is around the items.
func (s *jsonScanner) items(open, end byte, item func() bool) bool {
	if !s.take(open) {
		return false
	}
	for first := true; !s.take(end); first = false {
		if !first && !s.take(',') || !item() {
			return false
		}
	}
	return s.next() == 0 && s.at == len(s.b)
}

// members calls member for the names and values of an object. It reports whether the object is whole.
func members(object []byte, member func(name string, value []byte)) bool {
	s := jsonScanner{b: object}
	return s.items('{', '}', func() bool {
		if s.next() != '"' {
			return false
		}
		name := s.value()
		if bytes.IndexByte(name, '\\') >= 0 {
			name, _ = jsontext.AppendUnquote(nil, name) // a name that is no text is no name of the field
		} else if name != nil {
			name = name[1 : len(name)-1]
		}
		if !s.take(':') {
			return false
		}
		value := s.value()
		if len(value) > 0 {
			member(string(name), value)
		}
		return len(value) > 0
	})
}

// elements calls element for the values of a list, until it returns false. It reports whether that never happens and
// the list is whole.
func elements(list []byte, element func(value []byte) bool) bool {
	s := jsonScanner{b: list}
	return s.items('[', ']', func() bool {
		value := s.value()
		return len(value) > 0 && element(value)
	})
}

// findField returns the value of a field of an object, nil if there is none, and whether the object is whole. a.b is
// the field b of the object a, or the field with that name. Of several the last one counts, as for Python's json.
func findField(object []byte, path string) (value []byte, whole bool) {
	broken := false
	whole = members(object, func(name string, v []byte) {
		if name == path {
			value = v
		} else if rest, ok := strings.CutPrefix(path, name); ok && rest[0] == '.' && v[0] == '{' {
			inner, ok := findField(v, rest[1:])
			value, broken = inner, broken || !ok
		}
	})
	return value, whole && !broken
}

// jsonDocument returns the document of a JSON value: a string, or an object with the field.
func (f file) jsonDocument(value []byte, text *[]byte) document {
	value = bytes.TrimSpace(value)
	if len(value) > 0 && value[0] == '{' {
		field, whole := findField(value, f.field)
		switch {
		case !whole:
			return document{skip: reasonJSON}
		case field == nil:
			return document{skip: reasonNoField(f.field), fields: func() []string { return fieldNames(value, "") }}
		}
		return textOrMessages(field, text)
	}
	if s := (jsonScanner{b: value}); len(value) == 0 || len(s.value()) != len(value) {
		return document{skip: reasonJSON}
	}
	return textOrMessages(value, text)
}

// textOrMessages returns the document of a string or a list of messages. *text has room for text with escapes.
func textOrMessages(value []byte, text *[]byte) (d document) {
	switch {
	case string(value) == "null":
		d.skip = reasonNull
	case value[0] == '[':
		var ok bool
		if *text, ok = appendMessages((*text)[:0], value); !ok {
			return document{skip: reasonNoText}
		}
		d.text = *text
	case value[0] != '"':
		d.skip = reasonNoText
	default:
		d.text, d.skip = unquote(value, text)
	}
	return d
}

// unquote returns the text of a string, in *text if it has escapes, or the reason to skip it.
func unquote(quoted []byte, text *[]byte) ([]byte, string) {
	inner := quoted[1 : len(quoted)-1]
	if slices.ContainsFunc(inner, func(b byte) bool { return b == '\\' || b < ' ' }) {
		var err error
		if *text, err = jsontext.AppendUnquote((*text)[:0], quoted); err != nil {
			// The library has one error for text that is not UTF-8 and for escapes that do not exist.
			loose := jsontext.NewDecoder(bytes.NewReader(quoted), jsontext.AllowInvalidUTF8(true))
			if _, err := loose.ReadToken(); err != nil {
				return nil, reasonJSON
			}
			return nil, reasonUTF8
		}
		return *text, ""
	}
	if !utf8.Valid(inner) {
		return nil, reasonUTF8
	}
	return inner, ""
}

// appendMessages appends a list of messages to text: of each its role, a colon, a space and its content; an empty line
// is between them. Content may be a list of parts with a text each. It reports whether the value is such a list.
func appendMessages(text, list []byte) ([]byte, bool) {
	var buffer []byte
	n := 0
	whole := elements(list, func(message []byte) bool {
		role, content := findFields(message, "role", "from"), findFields(message, "content", "value")
		if role == nil || role[0] != '"' || content == nil {
			return false
		}
		if n++; n > 1 {
			text = append(text, "\n\n"...)
		}
		var ok, okContent bool
		text, ok = appendContent(text, role, &buffer)
		text, okContent = appendContent(append(text, ": "...), content, &buffer)
		return ok && okContent
	})
	return text, whole
}

// findFields returns the value of the first of some fields that an object has, or nil.
func findFields(object []byte, names ...string) []byte {
	for _, name := range names {
		if value, whole := findField(object, name); whole && value != nil {
			return value
		}
	}
	return nil
}

// appendContent appends the content of a message: a string, null or a list of parts, of which those without a text
// count as empty.
func appendContent(text, content []byte, buffer *[]byte) ([]byte, bool) {
	switch {
	case string(content) == "null":
		return text, true
	case content[0] == '"':
		part, skip := unquote(content, buffer)
		return append(text, part...), skip == ""
	}
	whole := elements(content, func(part []byte) (ok bool) {
		if part[0] == '{' {
			if part, _ = findField(part, defaultField); part == nil {
				return true
			}
		}
		if part[0] == '"' {
			text, ok = appendContent(text, part, buffer)
		}
		return ok
	})
	return text, whole
}

// maxFields bounds the fields that an error lists.
const maxFields = 16

// fieldNames returns the names of the fields of an object, with those of the objects in it as a.b.
func fieldNames(object []byte, prefix string) (names []string) {
	members(object, func(name string, value []byte) {
		if len(names) == maxFields {
			return
		}
		name = prefix + fmt.Sprintf("%.40s", name)
		if names = append(names, name); value[0] == '{' && strings.Count(name, ".") < 2 {
			names = append(names, fieldNames(value, name+".")...)
		}
	})
	return names[:min(len(names), maxFields)]
}

func reasonNoField(name string) string { return fmt.Sprintf("without %q", name) }
