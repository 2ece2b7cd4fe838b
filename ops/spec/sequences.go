package spec

import (
	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// Sequence is a row of the batch or, if rows hold documents, one document. Its tokens see no tokens outside it. A
// position in a sequence counts from the sequence's first token or key. Keys are tokens, or compressed keys.
type Sequence struct {
	Row                int // row of the batch
	FirstToken, Tokens int // index of its first token in the row; its number of tokens
	FirstKey, Keys     int // index of its first key in the row; its number of keys
}

// Sequences are the sequences of all rows of a batch.
type Sequences struct {
	CompressionBlocks           // of the keys
	RowTokens, RowKeys int      // tokens of a row; keys that a row has room for: those of a row that is one sequence
	table              *cpu.Buf // table of documents; nil: each row is one sequence
}

// CompressionBlocks are the sizes of the blocks that compressed keys stand for. The zero value means that keys are
// tokens.
type CompressionBlocks struct{ BlockLen, Stride int }

// SequencesOf returns the sequences of rows of s tokens and t keys: the documents of the table, if there is one, or
// whole rows.
func SequencesOf(table []Arg, s, t int, c CompressionBlocks) Sequences {
	x := Sequences{CompressionBlocks: c, RowTokens: s, RowKeys: t}
	if len(table) > 0 {
		x.table = table[0].Buf
	}
	return x
}

// HasDocuments reports whether the sequences are documents. If not, each row is one sequence.
func (x Sequences) HasDocuments() bool { return x.table != nil }

// OfToken returns the sequence of token t of row b.
func (x Sequences) OfToken(b, t int) Sequence {
	if x.table == nil {
		return Sequence{b, 0, x.RowTokens, 0, x.RowKeys}
	}
	row := cpu.Slice[int32](x.table)[(b*x.RowTokens+t)*docNumbers:][:docNumbers]
	first, n := int(row[docFirst]), int(row[docEnd]-row[docFirst])
	if x.BlockLen == 0 {
		return Sequence{b, first, n, first, n}
	}
	return Sequence{b, first, n, int(row[docKeys]), NumCompressed(n, x.BlockLen, x.Stride)}
}

// OfKey returns the sequence of the key at position i of row b, and whether there is a key at that position.
func (x Sequences) OfKey(b, i int) (Sequence, bool) {
	if x.table == nil || x.BlockLen == 0 {
		return x.OfToken(b, i), true
	}
	t := int(cpu.Slice[int32](x.table)[(b*x.RowTokens+i)*docNumbers+docBlock])
	if t < 0 {
		return Sequence{}, false
	}
	return x.OfToken(b, t), true
}

// A piece of work is a range of positions of a row, so the pieces do not depend on the documents. A piece computes the
// tiles that begin in its range. Tiles are counted from the start of a sequence, so a document has the same tiles and
// bits as if alone.

// Tiles cuts each sequence of row b into tiles [lo,hi) of at most size tokens. It calls f for the tiles that begin at a
// position of the row in [from,to).
func (x Sequences) Tiles(b, from, to, size int, f func(seq Sequence, lo, hi int)) {
	for t := from; t < to; {
		seq := x.OfToken(b, t)
		for lo := cpu.CeilDiv(t-seq.FirstToken, size) * size; lo < seq.Tokens && seq.FirstToken+lo < to; lo += size {
			f(seq, lo, min(seq.Tokens, lo+size))
		}
		t = max(t+1, seq.FirstToken+seq.Tokens) // ends even if the table is invalid
	}
}

// KeyTiles is tiles for keys instead of tokens.
func (x Sequences) KeyTiles(b, from, to, size int, f func(seq Sequence, lo, hi int)) {
	for i := from; i < to; {
		seq, ok := x.OfKey(b, i)
		if !ok {
			return
		}
		for lo := cpu.CeilDiv(i-seq.FirstKey, size) * size; lo < seq.Keys && seq.FirstKey+lo < to; lo += size {
			f(seq, lo, min(seq.Keys, lo+size))
		}
		i = max(i+1, seq.FirstKey+seq.Keys)
	}
}

// ForEach calls f for each sequence of row b.
func (x Sequences) ForEach(b int, f func(seq Sequence)) {
	for t := 0; t < x.RowTokens; {
		seq := x.OfToken(b, t)
		f(seq)
		t += max(1, seq.Tokens)
	}
}

// BindClearUnused adds to k a phase that zeroes, in arrays [B,T,...], the compressed keys that belong to no document.
func BindClearUnused[T cpu.Float](k *cpu.Kernel, x Sequences, arrays ...Arg) {
	if x.table == nil || x.BlockLen == 0 {
		return
	}
	k.Phase(arrays[0].Shape[0], func(b int, _ *cpu.Worker) {
		i := 0
		for i < x.RowKeys {
			seq, ok := x.OfKey(b, i)
			if !ok {
				break
			}
			i += max(1, seq.Keys)
		}
		for _, a := range arrays {
			n := a.Elements() / a.Shape[0]
			clear(cpu.Slice[T](a.Buf)[b*n:][i*(n/x.RowKeys) : n])
		}
	})
}
