package ops

import (
	"errors"
	"fmt"
	"slices"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// DocumentTable returns a table of the documents that are packed into the rows of a batch. The option WithDocuments gives the
// table to an op. The batch has batch rows of seq tokens. Tokens are counted row by row, and document i holds the tokens
// [cuSeqlens[i], cuSeqlens[i+1]).
//
// cuSeqlens [K+1] is int32 or int. It begins with 0, never falls and ends with batch*seq. It contains every multiple of seq, since
// a document lies in one row. Documents may be empty, so one graph takes any number of documents up to K: unused boundaries
// repeat the last one. Wrong boundaries are an error of the run, which names the first wrong one. No shape depends on the
// boundaries, so new boundaries need no new graph, plan or capture.
//
// An op with the option computes for every document the results that the document alone would have; on the CPU the bits are the
// same. Positions, windows, compression blocks and selection blocks begin at the document's first token and end with its last.
// The indices of SelectBlocks count from the document's first block.
//
// A document of n tokens has NumCompressed(n, blockLen, stride) compressed keys. They follow the compressed keys of the documents
// before it in the row, and all of them fit into the NumCompressed(seq, blockLen, stride) keys of the row. The unused keys are
// zero, and no query sees them. Graphs without compression set blockLen and stride to 0.
func DocumentTable(cuSeqlens *gorgonia.Node, batch, seq, blockLen, stride int) (*gorgonia.Node, error) {
	op := DocumentTableOp{batch, seq, blockLen, stride}
	cuSeqlens, err := int32Input(op, "cu_seqlens", cuSeqlens)
	if err != nil {
		return nil, err
	}
	return Apply(op, cuSeqlens)
}

// DocumentTableOp is the Spec of DocumentTable: cu_seqlens int32 [K+1] -> table int32 [B,S,4]. Entry t of a row has four numbers.
// Each is the index of a token or of a compressed key in that row:
//
//	0  the first token of the document of token t
//	1  the end of that document: one past its last token
//	2  the first compressed key of that document
//	3  the first token of the block of compressed key t (not of token t), -1 if there is no such key
//
// A kernel loads the four at once.
//
// The compressed keys of a row always fit. Two documents of m and n tokens, both at least l, have (m-l+d)/d + (n-l+d)/d keys, each
// term rounded down. Since d <= l, that is at most (m+n-l+d)/d, the number of one document of m+n tokens. Shorter documents have
// no keys. So a row has at most as many keys as one document of S tokens, which has at most S.
type DocumentTableOp struct {
	Batch, Seq int // B, S
	BlockLen   int // l: tokens of a compression block; 0: there are none
	Stride     int // d: tokens between the starts of two blocks
}

// The four numbers of an entry of the table.
const (
	docFirst = iota
	docEnd
	docKeys
	docBlock
	docNumbers
)

func (DocumentTableOp) Name() string { return "document table" }

func (op DocumentTableOp) blocks() compressionBlocks {
	return compressionBlocks{op.BlockLen, op.Stride}
}

func (op DocumentTableOp) Infer(in []Operand) ([]Operand, error) {
	if err := wantInputs(in, indexInput("cu_seqlens", 1)); err != nil {
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
	bindCheck(k, op, in)
	k.Phase(op.Batch, func(row int, _ *cpu.Worker) {
		size := op.Seq * docNumbers
		op.fill(cpu.Slice[int32](out[0].Buf)[row*size:][:size], cpu.Slice[int32](in[0].Buf), int32(row*op.Seq))
	})
}

// fill writes the table of one row. start is the row's first token, counted over the batch.
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

func (op DocumentTableOp) Check(_ []Operand, b *cpu.Buf) (err error) {
	defer asValueError(&err)
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

// Option is an option of the ops that look beyond a token. Linear has LinearOption.
type Option func(*options)

type options struct {
	table *gorgonia.Node
}

// WithDocuments tells an op that the rows of the batch hold documents that do not see each other. table comes from DocumentTable.
// A nil table changes nothing: each row is one document.
func WithDocuments(table *gorgonia.Node) Option { return func(o *options) { o.table = table } }

// packable is a Spec that takes a table of documents.
type packable interface {
	Spec
	// blocks returns the compression blocks for which the table must be made. The zero value takes a table made for any.
	blocks() compressionBlocks
}

// applyWithDocuments is Apply with the table of documents from opts, if there is one, as the last input.
func applyWithDocuments(spec packable, opts []Option, inputs ...*gorgonia.Node) (*gorgonia.Node, error) {
	var o options
	for _, opt := range opts {
		if opt == nil {
			return nil, opError(spec, errors.New("nil option"))
		}
		opt(&o)
	}
	if o.table != nil {
		if err := checkDocuments(spec, o.table); err != nil { // Apply checks only what has the type and rank of a table
			return nil, opError(spec, err)
		}
		inputs = append(inputs, o.table)
	}
	return Apply(spec, inputs...)
}

// checkDocuments returns an error unless DocumentTable has made table for the compression blocks of spec.
func checkDocuments(spec packable, table *gorgonia.Node) error {
	made, _ := SpecOf(table.Op())
	op, ok := made.(DocumentTableOp)
	if !ok {
		return fmt.Errorf("documents (%s) are not a result of DocumentTable", table.Name())
	}
	if want := spec.blocks(); want.blockLen > 0 && want != op.blocks() {
		return fmt.Errorf("documents have compression blocks of %d tokens, %d apart, want %d and %d", op.BlockLen, op.Stride, want.blockLen, want.stride)
	}
	return nil
}

// HasDocuments reports whether the inputs of an op include a table of documents.
func HasDocuments(in []Operand) bool { return slices.ContainsFunc(in, Operand.isTable) }

// isTable reports whether o is a table of documents: no op that takes a table has another int32 input with three axes.
func (o Operand) isTable() bool { return o.Dtype == tensor.Int32 && o.Shape.Dims() == 3 }

// splitTable removes input n if it is a table of documents. It returns the other inputs, and the table as one element or none.
func splitTable[A interface{ isTable() bool }](in []A, n int) (rest, table []A) {
	if n < 0 || n >= len(in) || !in[n].isTable() {
		return in, nil
	}
	return slices.Concat(in[:n], in[n+1:]), in[n : n+1]
}

// inputsWithTable returns n, the number of an op's own inputs, or n+1 if a table of documents follows these in in.
func inputsWithTable(in []Operand, n int) int {
	if _, table := splitTable(in, n); table != nil {
		n++
	}
	return n
}

// checkTable checks the shape of a table, if there is one, for rows of s tokens.
func checkTable(table []Operand, b, s int) error {
	if len(table) == 0 {
		return nil
	}
	return wantShape("documents", table[0].Shape, b, s, docNumbers)
}
