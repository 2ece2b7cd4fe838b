package corpus

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
)

// place is a position in the data: a token or byte of a document of a unit.
type place struct {
	Unit, Document, Offset int
}

// split says which documents are held out: those with certain hashes, or all from a position on.
type split struct {
	Kind string // one of the constants below
	From place
}

const (
	splitNone = "none"
	splitHash = "hash"
	splitLast = "last"
)

// heldOut reports whether a document is held out by the hash of its content.
func (d document) heldOut() bool {
	table := crc32.MakeTable(crc32.Castagnoli)
	if !d.isTokens {
		return crc32.Checksum(d.text, table)%heldOutPart == 0
	}
	sum, buffer := uint32(0), make([]byte, 0, 1024)
	for i, id := range d.tokens {
		buffer = binary.LittleEndian.AppendUint32(buffer, uint32(id))
		if len(buffer) == cap(buffer) || i == len(d.tokens)-1 {
			sum, buffer = crc32.Update(sum, table, buffer), buffer[:0]
		}
	}
	return sum%heldOutPart == 0
}

// cut returns the part of the i-th document of a unit that is for training or, if heldOut, the part that is held out.
func (s split) cut(unit, i int, d document, heldOut bool) document {
	switch {
	case d.skip != "":
		return document{}
	case s.Kind == splitHash:
		if d.heldOut() != heldOut {
			return document{}
		}
	case s.Kind == splitLast:
		n := d.size()
		switch {
		case unit > s.From.Unit || unit == s.From.Unit && i > s.From.Document:
			n = 0
		case unit == s.From.Unit && i == s.From.Document:
			n = min(n, s.From.Offset)
		}
		return d.part(n, heldOut)
	case heldOut:
		return document{}
	}
	return d
}

// part returns the first n bytes or tokens of a document or, if last, all others.
func (d document) part(n int, last bool) document {
	switch {
	case d.isTokens && last:
		d.tokens = d.tokens[n:]
	case d.isTokens:
		d.tokens = d.tokens[:n]
	case last:
		d.text = d.text[n:]
	default:
		d.text = d.text[:n]
	}
	return d
}

// scan decides the split and collects tokens of the held-out part.
func (c *Corpus) scan(ctx context.Context, tokens int) error {
	if tokens == 0 {
		c.split.Kind = splitNone
		return nil
	}
	c.split.Kind = splitHash
	h := &heldOutCollector{c: c, wanted: tokens, block: newBlock(c.Vocab(), 0)}
	sizes := make([]int, len(c.units)) // of the documents of each unit
	all, held := 0, 0
	for _, i := range newRand(0, 0, -1).Perm(len(c.units)) { // the same for every seed
		n := -1
		for d, err := range c.source.documents(ctx, c.units[i]) {
			n++
			if err != nil {
				return err
			}
			if d.skip != "" {
				continue
			}
			sizes[i] += d.size()
			all += d.size()
			if d = c.split.cut(i, n, d, true); d.size() > 0 {
				held += d.size()
				if err := h.add(d); err != nil {
					return fmt.Errorf("%s: %w", c.unitName(i), err)
				}
			}
			if h.full() && 2*held <= all {
				return h.finish()
			}
		}
	}
	if all == 0 {
		return fmt.Errorf("%s: %w: %s", c.name, errNothing, describeSkipped(c.Skipped()))
	}
	if 100*held >= all && 2*held <= all {
		return h.finish()
	}
	return c.holdLast(ctx, h, sizes, all-all/heldOutPart)
}

// holdLast holds out everything after the first n bytes or tokens of the data.
func (c *Corpus) holdLast(ctx context.Context, h *heldOutCollector, sizes []int, n int) error {
	h.block = newBlock(c.Vocab(), 0)
	h.text, h.tokens = 0, 0
	first := 0
	for first < len(sizes)-1 && n >= sizes[first] {
		n -= sizes[first]
		first++
	}
	c.split = split{splitLast, place{first, math.MaxInt, 0}}
	for i := first; i < len(c.units) && !h.full(); i++ {
		at := -1
		for d, err := range c.source.documents(ctx, c.units[i]) {
			at++
			if err != nil {
				return err
			}
			if d.skip != "" {
				continue
			}
			if i == first && c.split.From.Document == math.MaxInt {
				if n >= d.size() {
					n -= d.size()
					continue
				}
				if !d.isTokens {
					n = runeStart(d.text, n)
				}
				c.split.From = place{first, at, n}
			}
			if err := h.add(c.split.cut(i, at, d, true)); err != nil {
				return fmt.Errorf("%s: %w", c.unitName(i), err)
			}
			if h.full() {
				break
			}
		}
	}
	return h.finish()
}

// heldOutCollector collects held-out tokens.
type heldOutCollector struct {
	c            *Corpus
	block        *block
	wanted       int // tokens to collect
	text, tokens int // bytes of text, and tokens of it
	ids          []int32
}

func (h *heldOutCollector) full() bool { return h.block.tokens.len() >= h.wanted }

func (h *heldOutCollector) add(d document) (err error) {
	if h.full() || d.size() == 0 {
		return nil
	}
	if h.ids, err = h.c.encode(h.ids[:0], d); err != nil {
		return err
	}
	if d.isTokens {
		h.text += h.c.codec.length(h.ids)
	} else {
		h.text += len(d.text)
	}
	h.tokens += len(h.ids)
	ids := h.ids[:min(len(h.ids), h.wanted-h.block.tokens.len())]
	h.block.add(ids, len(ids) == len(h.ids), h.c.Separator())
	return nil
}

func (h *heldOutCollector) finish() error {
	if h.tokens > 0 {
		h.c.bytesPerToken = float64(h.text) / float64(h.tokens)
	}
	h.block.join()
	h.c.held = h.block
	return nil
}

// encode appends the tokens of a document to ids.
func (c *Corpus) encode(ids []int32, d document) ([]int32, error) {
	if d.isTokens {
		return append(ids, d.tokens...), nil
	}
	return c.codec.encode(ids, d.text)
}

// unitName names the file of a unit for an error.
func (c *Corpus) unitName(i int) string {
	if s, ok := c.source.(*fileSource); ok {
		return s.files[c.units[i].file].path
	}
	return c.name
}

// sampleBytes are hashed at the beginning, in the middle and at the end of a file.
const sampleBytes = 4 << 10

// identity hashes the files, the split and the vocabulary.
func (c *Corpus) identity(ctx context.Context, files []file) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "corpus 1 %s %v\n", c.codec.identity(), c.split)
	buffer := make([]byte, 3*sampleBytes)
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%q %d\n", f.name, f.size)
		if err := f.sample(h, buffer); err != nil {
			return "", fmt.Errorf("%s: %w", f.path, err)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

// sample writes samples of the file to w, or all of it if it is small.
func (f file) sample(w io.Writer, buffer []byte) error {
	plain := f
	plain.pack = ""
	in, err := plain.open(0)
	if err != nil {
		return err
	}
	defer in.Close()
	at, n := []int64{0}, int64(len(buffer))
	if f.size > n {
		at, n = []int64{0, (f.size - sampleBytes) / 2, f.size - sampleBytes}, sampleBytes
	}
	for _, from := range at {
		got, err := in.(io.ReaderAt).ReadAt(buffer[:n], from)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		w.Write(buffer[:got])
	}
	return nil
}

// identityOf hashes a description of data that are not read from files.
func identityOf(parts ...any) string {
	sum := sha256.Sum256(fmt.Append(nil, parts...))
	return hex.EncodeToString(sum[:16])
}
