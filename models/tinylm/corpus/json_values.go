package corpus

import (
	"bufio"
	"bytes"
	"io"
)

// jsonFormat returns how a .json file is read: as lines if its first line is a whole object or string, else as a list
// of values.
func (f file) jsonFormat() (fileFormat, error) {
	r, err := f.open(0)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	var buffer []byte
	in := bufio.NewReader(r)
	for first := true; ; first = false {
		line, err := readLine(in, &buffer)
		if first {
			line = bytes.TrimPrefix(line, []byte(byteOrderMark))
		}
		switch line = bytes.TrimSpace(line); {
		case err == errLongLine:
			return jsonValues, nil
		case err == io.EOF:
			return jsonLines, nil
		case err != nil:
			return 0, err
		case len(line) == 0:
			continue
		}
		s := jsonScanner{b: line}
		if c := s.next(); (c == '{' || c == '"') && len(s.value()) == len(line) {
			return jsonLines, nil
		}
		return jsonValues, nil
	}
}

// readValues yields the documents of a file with one JSON list, or with values one after the other. The whole file is
// one unit.
func readValues(f file) documents {
	return func(yield func(document, error) bool) {
		r, err := f.open(0)
		if err != nil {
			yield(document{}, err)
			return
		}
		defer r.Close()
		in := bufio.NewReaderSize(r, 256<<10)
		if mark, err := in.Peek(len(byteOrderMark)); err == nil && string(mark) == byteOrderMark {
			_, _ = in.Discard(len(mark))
		}
		var buffer, text []byte
		for first := true; ; first = false {
			value, err := nextValue(in, &buffer, first)
			switch {
			case err == io.EOF:
				return
			case err == errLongLine:
				if !yield(document{skip: reasonLong}, nil) {
					return
				}
			case err != nil:
				yield(document{}, err)
				return
			case !yield(f.jsonDocument(value, &text), nil):
				return
			}
		}
	}
}

// nextValue returns the next value of a list, or one behind another, valid until the next call. first says that the
// list may begin here. A value that the file cuts is returned as it is.
func nextValue(in *bufio.Reader, buffer *[]byte, first bool) ([]byte, error) {
	b, length := (*buffer)[:0], 0
	defer func() { *buffer = b }()
	depth, inString, escaped := 0, false, false
	for {
		c, err := in.ReadByte()
		if err == io.EOF && length > 0 {
			break
		}
		if err != nil {
			return nil, err
		}
		plain := !inString
		switch {
		case escaped:
			escaped = false
		case inString:
			inString, escaped = c != '"', c == '\\'
		case c == '"':
			inString = true
		case length == 0 && (c == '[' && first || c == ']' || separates(c)):
			first = first && c != '['
			continue
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		}
		if plain && depth <= 0 && (c == ']' || separates(c)) && !closes(b[0]) {
			break // a number or word
		}
		if length++; length <= documentBytes {
			b = append(b, c)
		}
		if depth <= 0 && !inString && closes(b[0]) {
			break
		}
	}
	if length > documentBytes {
		return nil, errLongLine
	}
	return b, nil
}

// separates reports whether a byte is a comma or white space.
func separates(c byte) bool { return c == ',' || c == ' ' || c == '\t' || c == '\r' || c == '\n' }

// closes reports whether a value that begins with a byte has an end of its own.
func closes(c byte) bool { return c == '{' || c == '[' || c == '"' }
