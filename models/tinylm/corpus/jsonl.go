package corpus

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
)

const (
	unitBytes     = 64 << 20 // of a range of a large .jsonl
	documentBytes = 64 << 20 // most bytes of a line of .jsonl or a value of Parquet
)

// errLongLine is the error of a line or value that is not kept in memory.
var errLongLine = fmt.Errorf("more than %d bytes, want at most that", documentBytes)

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
			n, err := skipLine(in, documentBytes)
			if err != nil {
				yield(document{}, fmt.Errorf("line around byte %d: %w", at, err))
				return
			}
			at += n
		}
		var buffer, text []byte
		for number := 1; f.compression != "" || at < u.to; number++ {
			line, err := readLine(in, &buffer)
			if err == io.EOF {
				return
			}
			d := document{skip: reasonLong}
			if err == errLongLine {
				n, skipErr := int64(0), error(nil)
				if f.compression != "" && line[len(line)-1] != '\n' { // else it reaches to the end of the unit
					n, skipErr = skipLine(in, math.MaxInt64)
				}
				at, err = at+documentBytes+n, skipErr
			} else if err == nil {
				at += int64(len(line))
				if u.from == 0 && number == 1 {
					line = bytes.TrimPrefix(line, []byte(byteOrderMark))
				}
				if line = bytes.TrimSpace(line); len(line) == 0 {
					continue
				}
				d = f.lineDocument(line, &text)
			}
			if err != nil {
				yield(document{}, fmt.Errorf("line behind byte %d: %w", at, err))
				return
			}
			if !yield(d, nil) {
				return
			}
		}
	}
}

// lineDocument returns the document of a line, which must be an object or a string.
func (f file) lineDocument(line []byte, text *[]byte) document {
	if line[0] != '{' && line[0] != '"' {
		return document{skip: reasonJSON}
	}
	return f.jsonDocument(line, text)
}

// skipLine reads up to the end of a line, or over most bytes, and returns the number of bytes.
func skipLine(in *bufio.Reader, most int64) (int64, error) {
	for n := int64(0); ; {
		part, err := in.ReadSlice('\n')
		n += int64(len(part))
		switch {
		case err == nil || err == io.EOF || n > most:
			return n, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return n, err
		}
	}
}

// readLine returns a line with its line break, valid until the next call. Long lines are kept in buffer. Of a line that
// is too long it returns the first part with errLongLine.
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
		return line, errLongLine
	}
	if err == io.EOF && len(line) > 0 {
		err = nil
	}
	return line, err
}
