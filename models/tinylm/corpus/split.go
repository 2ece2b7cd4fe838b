package corpus

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
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
	sum, buffer := uint32(0), []byte(nil)
	for part := range slices.Chunk(d.tokens, 256) {
		buffer, _ = binary.Append(buffer[:0], binary.LittleEndian, part)
		sum = crc32.Update(sum, table, buffer)
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
	from, to := 0, n
	if last {
		from, to = n, d.size()
	}
	if d.isTokens {
		d.tokens = d.tokens[from:to]
	} else {
		d.text = d.text[from:to]
	}
	return d
}
