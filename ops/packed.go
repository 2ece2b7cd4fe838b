package ops

import (
	"errors"
	"fmt"
	"slices"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// Option is an option of an op's constructor.
type Option func(*options)

type options struct {
	table *gorgonia.Node
}

// WithDocuments tells an op that the rows of the batch hold documents that do not see each other. table comes from DocumentTable.
// A nil table changes nothing: each row is one document.
func WithDocuments(table *gorgonia.Node) Option { return func(o *options) { o.table = table } }

// applyPacked is Apply with the table of documents from opts, if there is one, as the last input. The table must be made for
// compression blocks of blockLen tokens, stride tokens apart; if blockLen is 0, it may be made for any.
func applyPacked(spec Spec, blockLen, stride int, opts []Option, inputs ...*gorgonia.Node) (*gorgonia.Node, error) {
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
		case blockLen > 0 && (table.BlockLen != blockLen || table.Stride != stride):
			return nil, opError(spec, fmt.Errorf("documents have compression blocks of %d tokens, %d apart, want %d and %d", table.BlockLen, table.Stride, blockLen, stride))
		}
		inputs = append(inputs, o.table)
	}
	return Apply(spec, inputs...)
}

// Packed reports whether the inputs of an op include a table of documents.
func Packed(in []Operand) bool { return slices.ContainsFunc(in, Operand.isTable) }

// isTable reports whether o is a table of documents: no op that takes a table has another int32 input with three axes.
func (o Operand) isTable() bool { return o.Dtype == tensor.Int32 && o.Shape.Dims() == 3 }

// splitTable removes input n if it is a table of documents. It returns the other inputs, and the table as one element or none.
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
