package corpus

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	unitBytes     = 64 << 20 // of a range of a large .jsonl
	documentBytes = 64 << 20 // most bytes of a line of .jsonl or a value of Parquet
)

var errLongLine = fmt.Errorf("more than %d bytes, want at most that", documentBytes)

// record is the part of a line that is read.
type record struct {
	Text jsontext.Value `json:"text"`
}

// readLines yields the documents of the lines that begin in the unit.
func readLines(f file, u unit) documents {
	return func(yield func(document, error) bool) {
		at := max(0, u.from-1) // the unit's first line begins after the first line break from here on
		r, err := f.open(at)
		if err != nil {
			yield(document{}, err)
			return
		}
		defer r.Close()
		in := bufio.NewReaderSize(r, 256<<10)
		if u.from > 0 {
			n, err := skipLine(in)
			if err != nil {
				yield(document{}, fmt.Errorf("line around byte %d: %w", at, err))
				return
			}
			at += n
		}
		var buffer []byte
		for number := 1; f.compression != "" || at < u.to; number++ {
			line, err := readLine(in, &buffer)
			if err == io.EOF {
				return
			}
			d, object := document{}, line
			if u.from == 0 && number == 1 {
				object = bytes.TrimPrefix(line, []byte(byteOrderMark))
			}
			if err == nil {
				d, err = parseLine(object)
			}
			if err != nil {
				place := fmt.Sprintf("line %d", number)
				if u.from > 0 {
					place = "line"
				}
				yield(document{}, fmt.Errorf("%s at byte %d: %w", place, at, err))
				return
			}
			at += int64(len(line))
			if len(bytes.TrimSpace(line)) > 0 && !yield(d, nil) {
				return
			}
		}
	}
}

// skipLine reads up to the end of a line, and returns its length. A line that is too long is an error: it may have no end.
func skipLine(in *bufio.Reader) (int64, error) {
	for n := int64(0); ; {
		part, err := in.ReadSlice('\n')
		n += int64(len(part))
		switch {
		case n > documentBytes:
			return n, errLongLine
		case err == nil || err == io.EOF:
			return n, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return n, err
		}
	}
}

// readLine returns a line with its line break, valid until the next call. Long lines are kept in buffer.
func readLine(in *bufio.Reader, buffer *[]byte) ([]byte, error) {
	line, err := in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		*buffer = append((*buffer)[:0], line...)
		for errors.Is(err, bufio.ErrBufferFull) && len(*buffer) <= documentBytes {
			line, err = in.ReadSlice('\n')
			*buffer = append(*buffer, line...)
		}
		line = *buffer
	}
	if len(line) > documentBytes {
		return nil, errLongLine
	}
	if err == io.EOF && len(line) > 0 {
		err = nil
	}
	return line, err
}

// parseLine returns the document of a line, an empty one for a blank line.
func parseLine(line []byte) (document, error) {
	if len(bytes.TrimSpace(line)) == 0 {
		return document{}, nil
	}
	var r record
	if err := json.Unmarshal(line, &r); err != nil {
		// Skip text that is not UTF-8: it is no broken file. The library has the same error for both.
		if json.Unmarshal(line, &r, jsontext.AllowInvalidUTF8(true)) == nil {
			return document{skip: reasonUTF8}, nil
		}
		return document{}, err
	}
	switch kind := r.Text.Kind(); {
	case len(r.Text) == 0:
		return document{}, errors.New(`want a string "text", there is none`)
	case kind == 'n':
		return document{skip: reasonNull}, nil
	case kind != '"':
		return document{}, fmt.Errorf(`want a string "text", got a %v`, kind)
	}
	text, err := jsontext.AppendUnquote(nil, r.Text)
	return document{text: text}, err
}
