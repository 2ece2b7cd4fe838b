package ops

import "github.com/gorgonia-nsa/nsa/internal/cpu"

// sequence is a row of the batch or, if rows hold documents, one document. Its tokens see no tokens outside it. A position in a
// sequence counts from the sequence's first token or key. Keys are tokens, or compressed keys.
type sequence struct {
	row                int // row of the batch
	firstToken, tokens int // index of its first token in the row; its number of tokens
	firstKey, keys     int // index of its first key in the row; its number of keys
}

// sequences are the sequences of all rows of a batch.
type sequences struct {
	compressionBlocks           // of the keys
	rowTokens, rowKeys int      // tokens of a row; keys that a row has room for: those of a row that is one sequence
	table              *cpu.Buf // table of documents; nil: each row is one sequence
}

// compressionBlocks are the sizes of the blocks that compressed keys stand for. The zero value means that keys are tokens.
type compressionBlocks struct{ blockLen, stride int }

// sequencesOf returns the sequences of rows of s tokens and t keys: the documents of the table, if there is one, or whole rows.
func sequencesOf(table []Arg, s, t int, c compressionBlocks) sequences {
	x := sequences{compressionBlocks: c, rowTokens: s, rowKeys: t}
	if len(table) > 0 {
		x.table = table[0].Buf
	}
	return x
}

// hasDocuments reports whether the sequences are documents. If not, each row is one sequence.
func (x sequences) hasDocuments() bool { return x.table != nil }

// ofToken returns the sequence of token t of row b.
func (x sequences) ofToken(b, t int) sequence {
	if x.table == nil {
		return sequence{b, 0, x.rowTokens, 0, x.rowKeys}
	}
	row := cpu.Slice[int32](x.table)[(b*x.rowTokens+t)*docNumbers:][:docNumbers]
	first, n := int(row[docFirst]), int(row[docEnd]-row[docFirst])
	if x.blockLen == 0 {
		return sequence{b, first, n, first, n}
	}
	return sequence{b, first, n, int(row[docKeys]), NumCompressed(n, x.blockLen, x.stride)}
}

// ofKey returns the sequence of the key at position i of row b, and whether there is a key at that position.
func (x sequences) ofKey(b, i int) (sequence, bool) {
	if x.table == nil || x.blockLen == 0 {
		return x.ofToken(b, i), true
	}
	t := int(cpu.Slice[int32](x.table)[(b*x.rowTokens+i)*docNumbers+docBlock])
	if t < 0 {
		return sequence{}, false
	}
	return x.ofToken(b, t), true
}

// A piece of work is a range of positions of a row, so the pieces do not depend on the documents. A piece computes the tiles that begin
// in its range. Tiles are counted from the start of a sequence, so a document has the same tiles and bits as if alone.

// tiles cuts each sequence of row b into tiles [lo,hi) of at most size tokens. It calls f for the tiles that begin at a position of the
// row in [from,to).
func (x sequences) tiles(b, from, to, size int, f func(seq sequence, lo, hi int)) {
	for t := from; t < to; {
		seq := x.ofToken(b, t)
		for lo := cpu.CeilDiv(t-seq.firstToken, size) * size; lo < seq.tokens && seq.firstToken+lo < to; lo += size {
			f(seq, lo, min(seq.tokens, lo+size))
		}
		t = max(t+1, seq.firstToken+seq.tokens) // ends even if the table is invalid
	}
}

// keyTiles is tiles for keys instead of tokens.
func (x sequences) keyTiles(b, from, to, size int, f func(seq sequence, lo, hi int)) {
	for i := from; i < to; {
		seq, ok := x.ofKey(b, i)
		if !ok {
			return
		}
		for lo := cpu.CeilDiv(i-seq.firstKey, size) * size; lo < seq.keys && seq.firstKey+lo < to; lo += size {
			f(seq, lo, min(seq.keys, lo+size))
		}
		i = max(i+1, seq.firstKey+seq.keys)
	}
}

// forEach calls f for each sequence of row b.
func (x sequences) forEach(b int, f func(seq sequence)) {
	for t := 0; t < x.rowTokens; {
		seq := x.ofToken(b, t)
		f(seq)
		t += max(1, seq.tokens)
	}
}

// bindClearUnused adds to k a phase that zeroes, in arrays [B,T,...], the compressed keys that belong to no document.
func bindClearUnused[T cpu.Float](k *cpu.Kernel, x sequences, arrays ...Arg) {
	if x.table == nil || x.blockLen == 0 {
		return
	}
	k.Phase(arrays[0].Shape[0], func(b int, _ *cpu.Worker) {
		i := 0
		for i < x.rowKeys {
			seq, ok := x.ofKey(b, i)
			if !ok {
				break
			}
			i += max(1, seq.keys)
		}
		for _, a := range arrays {
			n := a.Elements() / a.Shape[0]
			clear(cpu.Slice[T](a.Buf)[b*n:][i*(n/x.rowKeys) : n])
		}
	})
}
