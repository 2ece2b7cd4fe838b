package corpus

import (
	"encoding/binary"
	"hash/crc32"
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
