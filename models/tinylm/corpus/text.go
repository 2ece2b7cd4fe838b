package corpus

import (
	"bytes"
	"io"
	"iter"
	"unicode/utf8"
)

const (
	textChunk = 4 << 20  // bytes of a document of plain text, roughly
	textNear  = 64 << 10 // if a line ends within so many bytes, the document ends after it

	byteOrderMark = "\ufeff" // at the beginning of a file it is no text
)

// cutter cuts a stream into chunks. Chunk 0 begins at byte 0. Chunk k begins at the position that begin finds in the
// near bytes from byte k*size on. So chunks are the same whether they are read one after the other or each by itself.
type cutter struct {
	size, near int
	begin      func(b []byte) int
}

// chunk is a part of a stream.
type chunk struct {
	at    int // position in the stream
	bytes []byte
}

// chunks yields the chunks of a stream. r is at byte k*size of the stream; inside says that k > 0. If one, it yields
// only the first chunk. A chunk is valid until the next.
func (c cutter) chunks(r io.Reader, inside, one bool) iter.Seq2[chunk, error] {
	return stream(func(yield func(chunk) bool) (err error) {
		var buffer []byte
		for at := 0; ; at += c.size {
			if buffer, err = readUpTo(r, buffer, c.size+c.near); err != nil {
				return err
			}
			from, to := 0, len(buffer)
			if inside {
				from = c.begin(buffer[:min(c.near, to)])
			}
			more := to > c.size
			if more {
				to = c.size + c.begin(buffer[c.size:])
			}
			if from < to && !yield(chunk{at + from, buffer[from:to]}) || !more || one {
				return nil
			}
			buffer, inside = buffer[:copy(buffer, buffer[c.size:])], true
		}
	})
}

// readUpTo appends to buffer until it has n bytes or r ends. Memory grows with the bytes that are read.
func readUpTo(r io.Reader, buffer []byte, n int) ([]byte, error) {
	for len(buffer) < n {
		if len(buffer) == cap(buffer) {
			bigger := make([]byte, len(buffer), min(n, max(64<<10, 4*cap(buffer))))
			copy(bigger, buffer)
			buffer = bigger
		}
		got, err := r.Read(buffer[len(buffer):min(n, cap(buffer))])
		buffer = buffer[:len(buffer)+got]
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	return buffer, nil
}

// lineStart returns the position after the first line break of b or, if there is none, of the first character of b.
func lineStart(b []byte) int {
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		return i + 1
	}
	for i := range min(utf8.UTFMax, len(b)) {
		if utf8.RuneStart(b[i]) {
			return i
		}
	}
	return 0
}

// cutLong cuts the texts of documents that are longer than those of plain text, in the same places. Encoding takes many
// times the memory of a text.
func cutLong(all documents) documents {
	return stream(func(yield func(document) bool) error {
		for d, err := range all {
			if err != nil {
				return err
			}
			if len(d.text) <= textChunk {
				if !yield(d) {
					return nil
				}
				continue
			}
			for c, err := range textCutter().chunks(bytes.NewReader(d.text), false, false) {
				if err != nil || !yield(document{text: c.bytes}) {
					return err
				}
			}
		}
		return nil
	})
}

func textCutter() cutter { return cutter{textChunk, textNear, lineStart} }

// readText yields the documents of plain text: that of the unit, or all of a compressed file.
func readText(f file, u unit) documents {
	return f.documents(u.from, func(in io.Reader, yield func(document) bool) error {
		for c, err := range textCutter().chunks(in, u.from > 0, f.compression == "") {
			if u.from == 0 && c.at == 0 {
				c.bytes = bytes.TrimPrefix(c.bytes, []byte(byteOrderMark))
			}
			if err != nil || !yield(document{text: c.bytes}) {
				return err
			}
		}
		return nil
	})
}
