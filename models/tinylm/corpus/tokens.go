package corpus

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"

	"github.com/gorgonia-nsa/nsa/models/tinylm/tokenizer"
)

const (
	chunkTokens = 4 << 20 // of a unit; a longer document is cut
	nearTokens  = 1 << 20 // a document that continues for more tokens after the end of a unit is cut at that end

	llmcHeader    = 1024 // bytes
	llmcUint16    = 20240520
	llmcUint32    = 20240801
	llmcVersion   = 1
	numpyMagic    = "\x93NUMPY"
	maxNumpyBytes = 64 << 10 // of a header
)

// tokenArray says where the tokens of a file are.
type tokenArray struct {
	offset int64 // of the first token
	n      int64
	width  int // bytes of a token
}

func (a tokenArray) bytes() int64 { return a.n * int64(a.width) }

// readTokenHeader reads the header of a file of tokens, and checks it against the size of the file.
func readTokenHeader(f file) (a tokenArray, err error) {
	r, err := f.open(0)
	if err != nil {
		return a, err
	}
	defer r.Close()
	if f.format == llmcTokens {
		a, err = readLlmcHeader(r)
	} else {
		a, err = readNumpyHeader(r)
	}
	if err == nil && f.compression == "" && f.size != a.offset+a.bytes() {
		err = fmt.Errorf("has %d bytes, want %d for %d tokens of %d bytes behind a header of %d",
			f.size, a.offset+a.bytes(), a.n, a.width, a.offset)
	}
	return a, err
}

func readLlmcHeader(r io.Reader) (tokenArray, error) {
	header := make([]byte, llmcHeader)
	if n, err := io.ReadFull(r, header); err != nil {
		return tokenArray{}, fmt.Errorf("header of llm.c: %d bytes, want %d: %w", n, llmcHeader, unexpected(err))
	}
	word := func(i int) int64 { return int64(int32(binary.LittleEndian.Uint32(header[4*i:]))) }
	a := tokenArray{offset: llmcHeader, n: word(2)}
	switch word(0) {
	case llmcUint16:
		a.width = 2
	case llmcUint32:
		a.width = 4
	default:
		return a, fmt.Errorf("header of llm.c: magic number %d, want %d or %d", word(0), llmcUint16, llmcUint32)
	}
	if word(1) != llmcVersion || a.n < 0 {
		return a, fmt.Errorf("header of llm.c: version %d with %d tokens, want version %d with 0 or more",
			word(1), a.n, llmcVersion)
	}
	return a, nil
}

func readNumpyHeader(r io.Reader) (a tokenArray, err error) {
	read := func(n int) []byte {
		b := make([]byte, n)
		if err == nil {
			_, err = io.ReadFull(r, b)
		}
		a.offset += int64(n)
		return b
	}
	start := read(len(numpyMagic) + 2)
	version := start[len(numpyMagic)]
	if err == nil && (string(start[:len(numpyMagic)]) != numpyMagic || version < 1 || version > 3) {
		return a, fmt.Errorf("header of NumPy: begins with %q, want %q and version 1 to 3", start, numpyMagic)
	}
	size := 0
	if version == 1 {
		size = int(binary.LittleEndian.Uint16(read(2)))
	} else {
		size = int(binary.LittleEndian.Uint32(read(4)))
	}
	if size > maxNumpyBytes {
		return a, fmt.Errorf("header of NumPy: %d bytes, want at most %d", size, maxNumpyBytes)
	}
	header := read(size)
	if err != nil {
		return a, fmt.Errorf("header of NumPy: %w", unexpected(err))
	}
	kind := regexp.MustCompile(`'descr': *'([^']*)'`).FindSubmatch(header)
	shape := regexp.MustCompile(`'shape': *\( *([0-9]+) *,? *\)`).FindSubmatch(header)
	if kind == nil || shape == nil {
		return a, fmt.Errorf("header of NumPy: %q, want an array with one dimension", bytes.TrimSpace(header))
	}
	switch string(kind[1]) {
	case "|u1", "<u1":
		a.width = 1
	case "<u2":
		a.width = 2
	case "<u4":
		a.width = 4
	default:
		return a, fmt.Errorf("array of %s, want uint8, or uint16 or uint32 with the low byte first", kind[1])
	}
	a.n, err = strconv.ParseInt(string(shape[1]), 10, 64)
	if err != nil || a.n > 1<<48 {
		return a, fmt.Errorf("header of NumPy: %s tokens are too many", shape[1])
	}
	return a, nil
}

// readTokens yields the documents, which end at separators: those of the unit, or all of a compressed file.
func readTokens(f file, u unit, t *tokenizer.Tokenizer) documents {
	a, skip := f.tokens, f.tokens.offset
	from := u.from
	if f.compression == "" {
		from, skip = u.from+a.offset, 0
	}
	return f.documents(from, func(in io.Reader, yield func(document) bool) error {
		if _, err := io.CopyN(io.Discard, in, skip); err != nil {
			return unexpected(err)
		}
		begin := func(b []byte) int { return a.afterSeparator(b, t.Separator()) }
		cut := cutter{chunkTokens * a.width, nearTokens * a.width, begin}
		var ids []int32
		for c, err := range cut.chunks(&exactly{in, a.bytes() - u.from}, u.from > 0, f.compression == "") {
			if err != nil {
				return err
			}
			for b := c.bytes; len(b) > 0; {
				n := a.afterSeparator(b, t.Separator())
				if n == 0 {
					n = len(b)
				}
				if ids, err = a.appendTokens(ids[:0], b[:n], t.Vocab()); err != nil {
					place := (u.from+int64(c.at+len(c.bytes)-len(b)))/int64(a.width) + int64(len(ids))
					return fmt.Errorf("token %d: %w", place, err)
				}
				b = b[n:]
				if ids[len(ids)-1] == t.Separator() {
					ids = ids[:len(ids)-1]
				}
				if len(ids) > 0 && !yield(document{tokens: ids, isTokens: true}) {
					return nil
				}
			}
		}
		return nil
	})
}

// afterSeparator returns the position in b after the first separator, 0 if there is none.
func (a tokenArray) afterSeparator(b []byte, separator int32) int {
	for i := 0; i < len(b); i += a.width {
		if firstToken(b[i:], a.width) == uint32(separator) {
			return i + a.width
		}
	}
	return 0
}

// appendTokens appends the tokens of b to ids. A token of vocab or more is an error.
func (a tokenArray) appendTokens(ids []int32, b []byte, vocab int) ([]int32, error) {
	for i := 0; i < len(b); i += a.width {
		id := firstToken(b[i:], a.width)
		if int64(id) >= int64(vocab) {
			return ids, fmt.Errorf("%d, the vocabulary has %d", id, vocab)
		}
		ids = append(ids, int32(id))
	}
	return ids, nil
}

// exactly reads the next left bytes of r. It is an error if r does not end after them.
type exactly struct {
	r    io.Reader
	left int64
}

func (e *exactly) Read(p []byte) (int, error) {
	if e.left == 0 {
		n, err := e.r.Read(make([]byte, 1))
		if n > 0 {
			err = errors.New("data behind the last token")
		}
		return 0, err
	}
	n, err := e.r.Read(p[:min(int64(len(p)), e.left)])
	e.left -= int64(n)
	if err == io.EOF && e.left > 0 {
		err = fmt.Errorf("%d bytes of tokens are missing: %w", e.left, io.ErrUnexpectedEOF)
	}
	return n, err
}
