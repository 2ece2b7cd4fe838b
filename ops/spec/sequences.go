package spec

import (
	"fmt"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// Sequence is a row of the batch or, if rows hold documents, one document. Its tokens see no tokens outside it. A
// position in a sequence counts from the sequence's first token or key. Keys are tokens, or compressed keys.
type Sequence struct {
	Row                int // row of the batch
	FirstToken, Tokens int // index of its first token in the row; its number of tokens
	FirstKey, Keys     int // index of its first key in the row; its number of keys
	Start              int // which token of the sequence its first query is
}

// Sequences are the sequences of all rows of a batch.
type Sequences struct {
	CompressionBlocks           // of the keys
	RowTokens, RowKeys int      // tokens of a row; keys that a row has room for: those of a row that is one sequence
	table              *cpu.Buf // table of documents; nil: each row is one sequence
	starts             *cpu.Buf // int32 [B]: which token of its row the first query is; nil: the first one
}

// CompressionBlocks are the sizes of the blocks that compressed keys stand for. The zero value means that keys are
// tokens.
type CompressionBlocks struct{ BlockLen, Stride int }

// SequencesOf returns the sequences of rows of s tokens and t keys: the documents of the table, if there is one, or
// whole rows.
func SequencesOf(table []Arg, s, t int, c CompressionBlocks) Sequences {
	x := Sequences{CompressionBlocks: c, RowTokens: s, RowKeys: t}
	switch {
	case len(table) == 0:
	case table[0].isStart():
		x.starts = table[0].Buf
	default:
		x.table = table[0].Buf
	}
	return x
}

// HasStart reports whether the queries may begin at another token than the first.
func (x Sequences) HasStart() bool { return x.starts != nil }

// MaxTokens returns the largest number of tokens that a row's keys allow.
func (x Sequences) MaxTokens() int {
	if x.starts == nil {
		return x.RowTokens
	}
	return x.CompressionBlocks.MaxTokens(x.RowTokens, x.RowKeys)
}

// MaxTokens returns the most tokens of a sequence with t keys, s of which are queries: t if keys are tokens.
func (c CompressionBlocks) MaxTokens(s, t int) int {
	if c.BlockLen == 0 {
		return t
	}
	return max(s, c.BlockLen+t*c.Stride-1)
}

// BindCheckStart makes the kernel check first where the queries start, if they may start anywhere.
func (x Sequences) BindCheckStart(k *cpu.Kernel) {
	if x.starts != nil {
		k.Check = x.CheckStart
	}
}

// CheckStart returns an error if the queries of a row do not lie in the sequence of its keys.
func (x Sequences) CheckStart() error {
	if x.starts == nil {
		return nil
	}
	return checkStart(x.starts, x.RowTokens, x.MaxTokens())
}

// checkStart returns an error unless s queries from each start on lie in a sequence of that many tokens.
func checkStart(starts *cpu.Buf, s, tokens int) (err error) {
	defer AsValueError(&err)
	for b, start := range cpu.Slice[int32](starts) {
		if most := tokens - s; start < 0 || int(start) > most {
			return fmt.Errorf("start of row %d is %d, want 0 to %d: %d queries, and keys of %d tokens", b, start, most, s, tokens)
		}
	}
	return nil
}

// HasDocuments reports whether the sequences are documents. If not, each row is one sequence.
func (x Sequences) HasDocuments() bool { return x.table != nil }

// OfToken returns the sequence of token t of row b.
func (x Sequences) OfToken(b, t int) Sequence {
	if x.starts != nil {
		return Sequence{b, 0, x.RowTokens, 0, x.RowKeys, int(cpu.Slice[int32](x.starts)[b])}
	}
	if x.table == nil {
		return Sequence{b, 0, x.RowTokens, 0, x.RowKeys, 0}
	}
	row := cpu.Slice[int32](x.table)[(b*x.RowTokens+t)*docNumbers:][:docNumbers]
	first, n := int(row[docFirst]), int(row[docEnd]-row[docFirst])
	if x.BlockLen == 0 {
		return Sequence{b, first, n, first, n, 0}
	}
	return Sequence{b, first, n, int(row[docKeys]), NumCompressed(n, x.BlockLen, x.Stride), 0}
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

// VisibleKeys returns how many first keys of a sequence its tokens may see.
func (x Sequences) VisibleKeys(seq Sequence) int {
	switch n := seq.Start + seq.Tokens; {
	case x.starts == nil:
		return seq.Keys
	case x.BlockLen == 0:
		return min(seq.Keys, n)
	default:
		return min(seq.Keys, NumCompressed(n, x.BlockLen, x.Stride))
	}
}

// A piece of work is a range of positions of a row, so the pieces do not depend on the documents. A piece computes the
// tiles that begin in its range. Tiles are counted from the start of a sequence, so a document has the same tiles and
// bits as if alone, and queries those of the whole sequence.

// Tiles cuts the queries of each sequence of row b into tiles [lo,hi) of at most size. It calls f for the tiles that
// begin at a position of the row in [from,to).
func (x Sequences) Tiles(b, from, to, size int, f func(seq Sequence, lo, hi int)) {
	for t := from; t < to; {
		seq := x.OfToken(b, t)
		lo := t - seq.FirstToken
		if lo > 0 {
			lo = cpu.CeilDiv(seq.Start+lo, size)*size - seq.Start
		}
		for lo < seq.Tokens && seq.FirstToken+lo < to {
			hi := min(seq.Tokens, (seq.Start+lo)/size*size+size-seq.Start)
			f(seq, lo, hi)
			lo = hi
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
