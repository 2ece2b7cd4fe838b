package ops

import (
	"errors"
	"fmt"
	"slices"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// DocumentTable returns a table of the documents that are packed into the rows of a batch, for the option WithDocuments of the
// ops. The batch has batch rows of seq tokens; document i holds the tokens [cuSeqlens[i], cuSeqlens[i+1]) of all rows, counted
// row by row.
//
// cuSeqlens [K+1] is int32 or int. It begins with 0, never falls and ends with batch*seq. Every multiple of seq is in it, since
// a document lies in one row. Documents may be empty, so a graph takes any number of them up to K: boundaries that are not
// needed repeat the last one. Wrong boundaries are an error of the run, which names the first wrong one. No shape depends on
// the boundaries, so new ones need no new graph, plan or capture.
//
// An op with the option gives every document the results of its own run, bit by bit on the CPU. Positions, windows, compression
// blocks and selection blocks begin at the document's first token and end with its last. The indices of SelectBlocks count from
// the document's first block. A document of n tokens has NumCompressed(n, blockLen, stride) compressed keys, behind those of
// the documents before it in the row. They fit into the row's NumCompressed(seq, blockLen, stride); the keys left over are zero,
// and no query sees them. A blockLen and stride of 0 are for graphs without compression.
func DocumentTable(cuSeqlens *gorgonia.Node, batch, seq, blockLen, stride int) (*gorgonia.Node, error) {
	op := DocumentTableOp{batch, seq, blockLen, stride}
	cuSeqlens, err := tokens(op, "cu_seqlens", cuSeqlens)
	if err != nil {
		return nil, err
	}
	return Apply(op, cuSeqlens)
}

// DocumentTableOp is the Spec of DocumentTable: cu_seqlens int32 [K+1] -> table int32 [B,S,4]. Place t of a row has four numbers,
// all of them places in that row:
//
//	0  the first token of the document of token t
//	1  the end of that document, behind its last token
//	2  the first compressed key of that document
//	3  the first token of the block of compressed key t (not of token t), -1 if there is no such key
//
// A kernel loads the four at once. Two documents of m and n tokens, both at least l, have (m-l+d)/d + (n-l+d)/d compressed keys,
// rounded down: at most (m+n-l+d)/d, what one document of m+n tokens has, since d <= l. Shorter documents have none. So the
// keys of a row fit the places of one document of S tokens, of which there are at most S.
type DocumentTableOp struct {
	Batch, Seq int // B, S
	BlockLen   int // l: tokens of a compression block; 0: there are none
	Stride     int // d: tokens between the starts of two blocks
}

// The numbers of a row of the table.
const (
	docFirst = iota
	docEnd
	docKeys
	docBlock
	docNumbers
)

func (DocumentTableOp) Name() string { return "document table" }

func (op DocumentTableOp) Infer(in []Operand) ([]Operand, error) {
	if err := wantInputs(in, index("cu_seqlens", 1)); err != nil {
		return nil, err
	}
	if op.BlockLen != 0 || op.Stride != 0 {
		if err := checkBlocks(op.BlockLen, op.Stride); err != nil {
			return nil, err
		}
	}
	if op.Batch < 1 || op.Seq < 1 || op.Batch > maxPacked/op.Seq {
		return nil, fmt.Errorf("a batch of %d x %d tokens, want 1 to %d", op.Batch, op.Seq, maxPacked)
	}
	if n := in[0].Shape[0]; n <= op.Batch {
		return nil, fmt.Errorf("cu_seqlens has %d boundaries, want at least %d for %d rows", n, op.Batch+1, op.Batch)
	}
	return []Operand{{tensor.Int32, tensor.Shape{op.Batch, op.Seq, docNumbers}}}, nil
}

// maxPacked bounds the tokens of a batch of documents, so that int32 holds their boundaries.
const maxPacked = 1 << 30

func (op DocumentTableOp) Bind(k *cpu.Kernel, in, out []Arg) {
	k.Check = func() error { return op.Check(nil, in[0].Buf) }
	k.Phase(op.Batch, func(row int, _ *cpu.Worker) {
		size := op.Seq * docNumbers
		op.fill(cpu.Slice[int32](out[0].Buf)[row*size:][:size], cpu.Slice[int32](in[0].Buf), int32(row*op.Seq))
	})
}

// fill makes the table of the row that begins with token start of the batch.
func (op DocumentTableOp) fill(table, cu []int32, start int32) {
	at, _ := slices.BinarySearch(cu, start)
	t, keys := 0, 0
	for i := at; t < op.Seq; i++ {
		first, end := cu[i]-start, cu[i+1]-start
		for ; t < int(end); t++ {
			row := table[t*docNumbers:][:docNumbers]
			row[docFirst], row[docEnd], row[docKeys] = first, end, int32(keys)
		}
		for j := range NumCompressed(int(end-first), op.BlockLen, op.Stride) {
			table[keys*docNumbers+docBlock] = first + int32(j*op.Stride)
			keys++
		}
	}
	for ; keys < op.Seq; keys++ {
		table[keys*docNumbers+docBlock] = -1
	}
}

func (DocumentTableOp) CheckedInput() int { return 0 }

func (op DocumentTableOp) Check(_ []Operand, b *cpu.Buf) error {
	cu, total := cpu.Slice[int32](b), op.Batch*op.Seq
	last := len(cu) - 1
	if cu[0] != 0 {
		return fmt.Errorf("cu_seqlens[0] is %d, want 0", cu[0])
	}
	row := op.Seq // where the next row begins
	for i := range last {
		switch first, end := int(cu[i]), int(cu[i+1]); {
		case end < first:
			return fmt.Errorf("cu_seqlens[%d] is %d, less than the %d before it", i+1, end, first)
		case end > total:
			return fmt.Errorf("cu_seqlens[%d] is %d, want at most the %d tokens of the batch", i+1, end, total)
		case end > row:
			return fmt.Errorf("document %d, tokens [%d, %d), crosses the end of a row of %d tokens at %d: want a boundary there", i, first, end, op.Seq, row)
		case end == row:
			row += op.Seq
		}
	}
	if int(cu[last]) != total {
		return fmt.Errorf("cu_seqlens[%d], the last one, is %d, want the %d tokens of the batch", last, cu[last], total)
	}
	return nil
}

// Option is an option of an op's constructor.
type Option func(*options)

type options struct {
	table *gorgonia.Node
}

// WithDocuments packs documents that do not see each other into the rows of a batch, by a table of DocumentTable. A nil table
// changes nothing: each row is one document.
func WithDocuments(table *gorgonia.Node) Option { return func(o *options) { o.table = table } }

// applyPacked is Apply with the table of the options, if there is one, as the last input. The table must have compression blocks
// of l tokens, d apart; an l of 0 takes any.
func applyPacked(spec Spec, l, d int, opts []Option, inputs ...*gorgonia.Node) (*gorgonia.Node, error) {
	var o options
	for _, opt := range opts {
		if opt == nil {
			return nil, opError(spec, errors.New("nil option"))
		}
		opt(&o)
	}
	if o.table != nil {
		made, _ := SpecOf(o.table.Op())
		switch table, ok := made.(DocumentTableOp); {
		case !ok:
			return nil, opError(spec, fmt.Errorf("documents (%s) are not of DocumentTable", o.table.Name()))
		case l > 0 && (table.BlockLen != l || table.Stride != d):
			return nil, opError(spec, fmt.Errorf("documents have compression blocks of %d tokens, %d apart, want %d and %d", table.BlockLen, table.Stride, l, d))
		}
		inputs = append(inputs, o.table)
	}
	return Apply(spec, inputs...)
}

// Packed reports whether there is a table of documents among the inputs of an op.
func Packed(in []Operand) bool { return slices.ContainsFunc(in, Operand.isTable) }

// isTable tells a table of documents from the other inputs of the ops that take one.
func (o Operand) isTable() bool { return o.Dtype == tensor.Int32 && o.Shape.Dims() == 3 }

// splitTable returns the inputs without the one at n if that is a table of documents, and the table: one element or none.
func splitTable[A interface{ isTable() bool }](in []A, n int) (rest, table []A) {
	if n < 0 || n >= len(in) || !in[n].isTable() {
		return in, nil
	}
	return slices.Concat(in[:n], in[n+1:]), in[n : n+1]
}

// checkTable checks the shape of a table, if there is one, for rows of s tokens.
func checkTable(table []Operand, b, s int) error {
	if len(table) == 0 {
		return nil
	}
	return wantShape("documents", table[0].Shape, b, s, docNumbers)
}

// sequence is a run of tokens that see no others: a row of the batch, or a document in it. Its tokens and keys count from its
// first. Keys are tokens, or compressed keys.
type sequence struct {
	b        int // row of the batch
	first, s int // its tokens in the row: s of them from the first on
	key, t   int // its keys in the row, likewise
}

// sequences are those of all rows.
type sequences struct {
	rowS, rowT int      // tokens and keys of a row
	l, d       int      // of compressed keys; 0 where keys are tokens
	table      *cpu.Buf // nil: each row is one sequence
}

// sequencesOf returns the sequences of rows of s tokens and t keys: of tables of documents, if there is one.
func sequencesOf(table []Arg, s, t, l, d int) sequences {
	x := sequences{rowS: s, rowT: t, l: l, d: d}
	if len(table) > 0 {
		x.table = table[0].Buf
	}
	return x
}

func (x sequences) packed() bool { return x.table != nil }

// of returns the sequence of token t of row b.
func (x sequences) of(b, t int) sequence {
	if x.table == nil {
		return sequence{b, 0, x.rowS, 0, x.rowT}
	}
	row := cpu.Slice[int32](x.table)[(b*x.rowS+t)*docNumbers:][:docNumbers]
	first, n := int(row[docFirst]), int(row[docEnd]-row[docFirst])
	if x.l == 0 {
		return sequence{b, first, n, first, n}
	}
	return sequence{b, first, n, int(row[docKeys]), NumCompressed(n, x.l, x.d)}
}

// ofKey returns the sequence of the key at place i of row b, and whether there is one.
func (x sequences) ofKey(b, i int) (sequence, bool) {
	if x.table == nil || x.l == 0 {
		return x.of(b, i), true
	}
	t := int(cpu.Slice[int32](x.table)[(b*x.rowS+i)*docNumbers+docBlock])
	if t < 0 {
		return sequence{}, false
	}
	return x.of(b, t), true
}

// Pieces of work are bounded by the places of a row, which do not depend on the documents: a piece does the tiles that begin in its
// places. Tiles begin with their sequence, so that a document has the tiles, and the bits, of its own run.

// tiles calls f for tiles [lo,hi) of at most size tokens of the sequences of row b: those that begin at a place of [from,to).
func (x sequences) tiles(b, from, to, size int, f func(q sequence, lo, hi int)) {
	for t := from; t < to; {
		q := x.of(b, t)
		for lo := pieces(t-q.first, size) * size; lo < q.s && q.first+lo < to; lo += size {
			f(q, lo, min(q.s, lo+size))
		}
		t = max(t+1, q.first+q.s) // ends even if the table is invalid
	}
}

// keyTiles is tiles for keys.
func (x sequences) keyTiles(b, from, to, size int, f func(q sequence, lo, hi int)) {
	for i := from; i < to; {
		q, ok := x.ofKey(b, i)
		if !ok {
			return
		}
		for lo := pieces(i-q.key, size) * size; lo < q.t && q.key+lo < to; lo += size {
			f(q, lo, min(q.t, lo+size))
		}
		i = max(i+1, q.key+q.t)
	}
}

// each calls f for the sequences of row b.
func (x sequences) each(b int, f func(q sequence)) {
	for t := 0; t < x.rowS; {
		q := x.of(b, t)
		f(q)
		t += max(1, q.s)
	}
}

// bindClearRest adds to k the phase that zeroes the keys of no document in arrays [B,T,...].
func bindClearRest[T cpu.Float](k *cpu.Kernel, x sequences, arrays ...Arg) {
	if x.table == nil || x.l == 0 {
		return
	}
	k.Phase(arrays[0].Shape[0], func(b int, _ *cpu.Worker) {
		i := 0
		for i < x.rowT {
			q, ok := x.ofKey(b, i)
			if !ok {
				break
			}
			i += max(1, q.t)
		}
		for _, a := range arrays {
			n := a.Elements() / a.Shape[0]
			clear(cpu.Slice[T](a.Buf)[b*n:][i*(n/x.rowT) : n])
		}
	})
}
