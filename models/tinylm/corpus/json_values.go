package corpus

import (
	"bufio"
	"bytes"
	"io"
	"strings"
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
	for in := bufio.NewReader(r); ; {
		line, err := readLine(in, &buffer)
		line = bytes.TrimSpace(bytes.TrimPrefix(line, []byte(byteOrderMark)))
		switch {
		case err == io.EOF:
			return jsonLines, nil
		case err != nil && err != errLongLine:
			return 0, err
		case err == nil && len(line) == 0:
			continue
		}
		s := jsonScanner{b: line}
		if c := s.next(); err == nil && (c == '{' || c == '"') && len(s.value()) == len(line) {
			return jsonLines, nil
		}
		return jsonValues, nil
	}
}

// readValues yields the documents of a file with one JSON list, or with values one after the other. The whole file is
// one unit.
func readValues(f file) documents {
	return f.documents(0, func(r io.Reader, yield func(document) bool) error {
		in := bufio.NewReaderSize(r, 256<<10)
		if mark, err := in.Peek(len(byteOrderMark)); err == nil && string(mark) == byteOrderMark {
			_, _ = in.Discard(len(mark))
		}
		var buffer, text []byte
		for first := true; ; first = false {
			value, err := nextValue(in, &buffer, first)
			d := document{skip: reasonLong}
			if err == nil {
				d = f.jsonDocument(value, &text)
			} else if err == io.EOF {
				return nil
			} else if err != errLongLine {
				return err
			}
			if !yield(d) {
				return nil
			}
		}
	})
}

// nextValue returns the next value of a list, or one behind another, valid until the next call. first says that the
// list may begin here. A value that the file cuts is returned as it is.
func nextValue(in *bufio.Reader, buffer *[]byte, first bool) ([]byte, error) {
	b, length, w := (*buffer)[:0], 0, walker{}
	defer func() { *buffer = b }()
	for ends := false; !ends; {
		c, err := in.ReadByte()
		if err == io.EOF && length > 0 {
			break
		}
		if err != nil {
			return nil, err
		}
		word := w.endsWord(c, "], \t\r\n")
		if length == 0 && (word || c == '[' && first) { // what is between values
			first = first && c != '['
			continue
		}
		if word {
			break
		}
		if length++; length <= documentBytes {
			b = append(b, c)
		}
		ends = w.ends(c) && strings.IndexByte(`{["`, b[0]) >= 0
	}
	if length > documentBytes {
		return nil, errLongLine
	}
	return b, nil
}
