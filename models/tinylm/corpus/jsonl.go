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
	at := max(0, u.from-1) // the unit's first line begins after the first line break from here on
	return f.documents(at, func(r io.Reader, yield func(document) bool) error {
		at, in := at, bufio.NewReaderSize(r, 256<<10)
		if u.from > 0 {
			n, err := skipLine(in, documentBytes)
			if err != nil {
				return fmt.Errorf("line around byte %d: %w", at, err)
			}
			at += n
		}
		var buffer, text []byte
		for number := 1; f.compression != "" || at < u.to; number++ {
			line, err := readLine(in, &buffer)
			if err == io.EOF {
				return nil
			}
			d, n := document{skip: reasonLong}, int64(len(line))
			if err == errLongLine {
				n, err = documentBytes, nil
				if f.compression != "" && line[len(line)-1] != '\n' { // else it reaches to the end of the unit
					_, err = skipLine(in, math.MaxInt64)
				}
			} else if err == nil {
				if u.from == 0 && number == 1 {
					line = bytes.TrimPrefix(line, []byte(byteOrderMark))
				}
				line = bytes.TrimSpace(line)
				d = f.lineDocument(line, &text)
			}
			if at += n; err != nil {
				return fmt.Errorf("line behind byte %d: %w", at, err)
			}
			if len(line) > 0 && !yield(d) {
				return nil
			}
		}
		return nil
	})
}

// lineDocument returns the document of a line, which must be an object or a string.
func (f file) lineDocument(line []byte, text *[]byte) document {
	if len(line) == 0 || line[0] != '{' && line[0] != '"' {
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
