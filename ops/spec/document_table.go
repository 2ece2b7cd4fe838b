package spec

import (
	"errors"
	"fmt"
	"slices"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// DocumentTable is the Spec of DocumentTable: cu_seqlens int32 [K+1] -> table int32 [B,S,4]. Entry t of a row has four
// numbers. Each is the index of a token or of a compressed key in that row:
//
//	0  the first token of the document of token t
//	1  the end of that document: one past its last token
//	2  the first compressed key of that document
//	3  the first token of the block of compressed key t (not of token t), -1 if there is no such key
//
// A kernel loads the four at once.
//
// The compressed keys of a row always fit. Two documents of m and n tokens, both at least l, have (m-l+d)/d + (n-l+d)/d
// keys, each term rounded down. Since d <= l, that is at most (m+n-l+d)/d, the number of one document of m+n tokens.
// Shorter documents have no keys. So a row has at most as many keys as one document of S tokens, which has at most S.
type DocumentTable struct {
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

func (DocumentTable) Name() string       { return "document table" }
func (DocumentTable) InputNames() string { return "cu_seqlens" }

func (op DocumentTable) Blocks() CompressionBlocks {
	return CompressionBlocks{op.BlockLen, op.Stride}
}

func (op DocumentTable) Infer(in []Operand) ([]Operand, error) {
	if err := WantInputs(in, IndexInput("cu_seqlens", 1)); err != nil {
		return nil, err
	}
	if op.BlockLen != 0 || op.Stride != 0 {
		if err := CheckBlocks(op.BlockLen, op.Stride); err != nil {
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

func (op DocumentTable) Bind(k *cpu.Kernel, in, out []Arg) {
	BindCheck(k, op, in)
	k.Phase(op.Batch, func(row int, _ *cpu.Worker) {
		size := op.Seq * docNumbers
		op.fill(cpu.Slice[int32](out[0].Buf)[row*size:][:size], cpu.Slice[int32](in[0].Buf), int32(row*op.Seq))
	})
}

// fill writes the table of one row. start is the row's first token, counted over the batch.
func (op DocumentTable) fill(table, cu []int32, start int32) {
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

func (DocumentTable) CheckedInput() int { return 0 }

func (op DocumentTable) Check(_ []Operand, b *cpu.Buf) (err error) {
	defer AsValueError(&err)
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
	table, start *gorgonia.Node
}

// WithDocuments tells an op that the rows of the batch hold documents that do not see each other. table comes from
// DocumentTable. A nil table changes nothing: each row is one document.
func WithDocuments(table *gorgonia.Node) Option { return func(o *options) { o.table = table } }

// WithStart tells an op that the queries of row b are tokens start[b], start[b]+1, ... of the sequence of its keys, which
// may be longer. See ops.WithStart.
func WithStart(start *gorgonia.Node) Option { return func(o *options) { o.start = start } }

// Startable is a Spec that takes a start of the queries: a Packable one in place of a table of documents.
type Startable interface {
	Spec
	// MaxTokens returns the most tokens that the sequences of the keys may have.
	MaxTokens(in []Operand) int
}

// StartCheck is the check of the start that a Startable Spec takes as this input.
type StartCheck struct {
	Startable
	Input int
}

func (c StartCheck) CheckedInput() int { return c.Input }

func (c StartCheck) Check(in []Operand, b *cpu.Buf) error {
	return checkStart(b, in[0].Shape[1], c.MaxTokens(in))
}

// Packable is a Spec that takes a table of documents.
type Packable interface {
	Spec
	// Blocks returns the compression blocks for which the table must be made. The zero value takes a table made for any.
	Blocks() CompressionBlocks
}

// ApplyWithDocuments is Apply with the table of documents, or the start of the queries, from opts, if there is one, as
// the last input.
func ApplyWithDocuments(spec Packable, opts []Option, inputs ...*gorgonia.Node) (*gorgonia.Node, error) {
	var o options
	for _, opt := range opts {
		if opt == nil {
			return nil, ErrorIn(spec, errors.New("nil option"))
		}
		opt(&o)
	}
	if o.table != nil {
		if err := checkDocuments(spec, o.table); err != nil { // Apply checks only what has the type and rank of a table
			return nil, ErrorIn(spec, err)
		}
		inputs = append(inputs, o.table)
	}
	if o.start != nil {
		if _, ok := spec.(Startable); !ok {
			return nil, ErrorIn(spec, errors.New("takes no start of queries (WithStart)"))
		}
		if o.table != nil {
			return nil, ErrorIn(spec, errors.New("WithStart excludes WithDocuments"))
		}
		start, err := Int32Input(spec, "start", o.start)
		if err != nil {
			return nil, err
		}
		inputs = append(inputs, start)
	}
	return Apply(spec, inputs...)
}

// checkDocuments returns an error unless DocumentTable has made table for the compression blocks of spec.
func checkDocuments(spec Packable, table *gorgonia.Node) error {
	made, _ := SpecOf(table.Op())
	op, ok := made.(DocumentTable)
	if !ok {
		return fmt.Errorf("documents (%s) are not a result of DocumentTable", table.Name())
	}
	if want := spec.Blocks(); want.BlockLen > 0 && want != op.Blocks() {
		return fmt.Errorf("documents have compression blocks of %d tokens, %d apart, want %d and %d", op.BlockLen,
			op.Stride, want.BlockLen, want.Stride)
	}
	return nil
}

// HasDocuments reports whether the inputs of an op include a table of documents.
func HasDocuments(in []Operand) bool {
	return slices.ContainsFunc(in, func(o Operand) bool { return o.IsTable() && !o.isStart() })
}

// StartOf returns the check of the start of the queries, if the inputs of an op include one.
func StartOf(s Spec, in []Operand) (c StartCheck, ok bool) {
	if c.Startable, ok = s.(Startable); !ok {
		return c, false
	}
	c.Input = slices.IndexFunc(in, Operand.isStart)
	return c, c.Input >= 0
}

// IsTable reports whether o is a table of documents or a start of queries: no op that takes one has another int32 input
// with three axes, or with one.
func (o Operand) IsTable() bool { return o.Dtype == tensor.Int32 && o.Shape.Dims() == 3 || o.isStart() }

// StartsAnywhere reports whether the table that SplitTable has found is a start of queries.
func StartsAnywhere(table []Operand) bool { return len(table) > 0 && table[0].isStart() }

func (o Operand) isStart() bool { return o.Dtype == tensor.Int32 && o.Shape.Dims() == 1 }

// SplitTable removes input n if it is a table of documents. It returns the other inputs, and the table as one element
// or none.
func SplitTable[A interface{ IsTable() bool }](in []A, n int) (rest, table []A) {
	if n < 0 || n >= len(in) || !in[n].IsTable() {
		return in, nil
	}
	return slices.Concat(in[:n], in[n+1:]), in[n : n+1]
}

// InputsWithTable returns n, the number of an op's own inputs, or n+1 if a table of documents follows these in in.
func InputsWithTable(in []Operand, n int) int {
	if _, table := SplitTable(in, n); table != nil {
		n++
	}
	return n
}

// CheckTable checks the shape of a table or of a start, if there is one, for rows of s tokens.
func CheckTable(table []Operand, b, s int) error {
	switch {
	case len(table) == 0:
		return nil
	case table[0].isStart():
		return WantShape("start", table[0].Shape, b)
	}
	return WantShape("documents", table[0].Shape, b, s, docNumbers)
}
