package corpus

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"unicode/utf8"

	"github.com/gorgonia-nsa/nsa/models/tinylm/tokenizer"
)

// unit is a part of a corpus that is read in one go.
type unit struct {
	file     int
	from, to int64 // bytes of the content after a header, or row groups
	whole    bool  // it is all of the file
}

// document is text, or tokens if its file holds tokens. Both are valid until the next document is read.
type document struct {
	text     []byte
	tokens   []int32
	isTokens bool
	skip     string          // reason to leave the document out, or ""
	fields   func() []string // of a document without the field: those that it has
}

// size returns the length in bytes or tokens.
func (d document) size() int { return len(d.text) + len(d.tokens) }

// documents yields the documents of a unit in order. It ends after an error.
type documents = iter.Seq2[document, error]

// makeUnits cuts files into units, in the order of the files, and counts in skipped those that have none.
func makeUnits(ctx context.Context, files []file, skipped *tally) ([]unit, error) {
	var units []unit
	for i := range files {
		f, first := &files[i], len(units)
		err := ctx.Err()
		end, step := f.size, f.size
		switch {
		case err != nil:
		case f.format == parquetText:
			var groups [][2]int64
			groups, err = rowGroups(*f)
			for _, g := range groups {
				units = append(units, unit{file: i, from: g[0], to: g[1]})
			}
			end = 0
		case f.isTokens():
			f.tokens, err = readTokenHeader(*f)
			end = f.tokens.bytes()
			step = int64(chunkTokens * f.tokens.width)
		case f.format == plainText:
			step = textChunk
		case f.format == jsonLines:
			step = unitBytes
		case f.format == jsonText:
			if f.format, err = f.jsonFormat(); f.format == jsonLines {
				step = unitBytes
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.path, err)
		}
		if f.compression != "" {
			step = end
		}
		for from := int64(0); from < end; from += step {
			units = append(units, unit{file: i, from: from, to: min(from+step, end)})
		}
		switch len(units) - first {
		case 0:
			skipped.addFile(reasonEmpty, f.name)
		case 1:
			units[first].whole = true
		}
	}
	return units, nil
}

// fileSource reads documents from files.
type fileSource struct {
	files     []file
	tokenizer *tokenizer.Tokenizer
	skipped   *tally
	wantUTF8  bool
}

// documents reads a unit. It also yields the documents to be skipped, so that skipping does not change the number of a
// document in its unit.
func (s *fileSource) documents(ctx context.Context, u unit) documents {
	f := s.files[u.file]
	var all documents
	switch {
	case f.format == jsonLines:
		all = cutLong(readLines(f, u))
	case f.format == jsonValues:
		all = cutLong(readValues(f))
	case f.format == parquetText:
		all = cutLong(readRowGroups(f, u))
	case f.isTokens():
		all = readTokens(f, u, s.tokenizer)
	default:
		all = readText(f, u)
	}
	return stream(func(yield func(document) bool) error {
		counts, n := map[string]int{}, 0
		for d, err := range all {
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return fmt.Errorf("%s: %w", f.path, err)
			}
			n++
			if d.skip == "" {
				d.skip = s.reason(d)
			}
			if d.skip != "" {
				counts[d.skip]++
				s.skipped.addRecords(d.skip, f.name, u, counts[d.skip])
				s.skipped.addFields(d.fields)
			}
			if !yield(d) {
				return nil
			}
		}
		if n == 0 && u.whole {
			s.skipped.addRecords(reasonEmpty, f.name, u, 1)
		}
		return nil
	})
}

// reason returns why a document is skipped, or "".
func (s *fileSource) reason(d document) string {
	switch {
	case d.isTokens:
	case len(d.text) == 0:
		return reasonEmpty
	case bytes.IndexByte(d.text, 0) >= 0:
		return reasonBinary
	case s.wantUTF8 && !utf8.Valid(d.text):
		return reasonUTF8
	}
	return ""
}

// stream returns the values that read yields and then, if yield has not returned false, its error.
func stream[T any](read func(yield func(T) bool) error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		more := true
		err := read(func(value T) bool {
			more = more && yield(value, nil)
			return more
		})
		if err != nil && more {
			var none T
			yield(none, err)
		}
	}
}

// documents returns the documents that read yields of the content of a file, from the given byte on.
func (f file) documents(from int64, read func(in io.Reader, yield func(document) bool) error) documents {
	return stream(func(yield func(document) bool) error {
		in, err := f.open(from)
		if err != nil {
			return err
		}
		defer in.Close()
		return read(in, yield)
	})
}
