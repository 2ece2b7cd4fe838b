package graph

import (
	"fmt"
	"reflect"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// selection computes gorgonia.ByIndices and its gradient. Package tensor v0.9.24 computes other results along an axis in the
// middle, for inputs of one element, and for some gradients along the last axis. It takes an index outside the axis for 0.
type selection struct {
	axis     int
	gradient bool // of x: the arguments are x, the gradient of the result and the indices. Otherwise they are x and the indices
}

// selectionOf returns the selection that op computes, nil if it is another op.
func selectionOf(op G.Op) *selection {
	switch name := gorgoniaType(op); name {
	case "byIndicesOp", "byIndicesOpDiffOp":
		return &selection{axis: intField(op, "axis"), gradient: name == "byIndicesOpDiffOp"}
	}
	return nil
}

// do writes the result to dst, which is row-major.
func (s *selection) do(dst *tensor.Dense, args []G.Value) error {
	from, err := rowMajorData(args[len(args)-2])
	if err != nil {
		return err
	}
	list, err := rowMajorData(args[len(args)-1])
	if err != nil {
		return err
	}
	indices, ok := list.([]int)
	if !ok {
		return fmt.Errorf("the indices are %T, want []int", list)
	}
	x := args[0].Shape()
	length := x[s.axis]
	if i := slices.IndexFunc(indices, func(index int) bool { return index < 0 || index >= length }); i >= 0 {
		return fmt.Errorf("index %d at %d is outside axis %d, [0, %d)", indices[i], i, s.axis, length)
	}
	blocks, run := ops.Operand{Shape: x[:s.axis]}.Elements(), ops.Operand{Shape: x[s.axis+1:]}.Elements()
	// each calls f for each run of elements with its places in x and in the selection.
	each := func(f func(inX, selected int)) {
		for block := range blocks {
			for i, index := range indices {
				f((block*length+index)*run, (block*len(indices)+i)*run)
			}
		}
	}
	if !s.gradient {
		to, from := reflect.ValueOf(dst.Data()), reflect.ValueOf(from)
		each(func(inX, selected int) { reflect.Copy(to.Slice(selected, selected+run), from.Slice(inX, inX+run)) })
		return nil
	}
	switch to := dst.Data().(type) {
	case []float64:
		clear(to)
		dy := from.([]float64)
		each(func(inX, selected int) { cpu.Add(to[inX:][:run], to[inX:][:run], dy[selected:][:run]) })
	case []float32:
		clear(to)
		dy := from.([]float32)
		each(func(inX, selected int) { cpu.Add(to[inX:][:run], to[inX:][:run], dy[selected:][:run]) })
	default:
		return fmt.Errorf("the gradient is %T, want []float32 or []float64", to)
	}
	return nil
}

// rowMajorData returns the elements of a tensor in row-major order.
func rowMajorData(v G.Value) (any, error) {
	d, ok := toRowMajor(v).(*tensor.Dense)
	if !ok || !isPlainRowMajor(d) {
		return nil, fmt.Errorf("got a %T that is not row-major", v)
	}
	return d.Data(), nil
}
