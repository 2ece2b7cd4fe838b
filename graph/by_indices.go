package graph

import (
	"fmt"
	"reflect"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// byIndicesOf returns how to compute op, nil if it is another op.
func byIndicesOf(op G.Op) *byIndices {
	switch name := gorgoniaType(op); name {
	case "byIndicesOp", "byIndicesOpDiffOp":
		return &byIndices{axis: intField(op, "axis"), gradient: name == "byIndicesOpDiffOp"}
	}
	return nil
}

// do writes the result to dst, which is row-major.
func (s *byIndices) do(dst *tensor.Dense, args []G.Value) error {
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
	blocks, run := spec.Operand{Shape: x[:s.axis]}.Elements(), spec.Operand{Shape: x[s.axis+1:]}.Elements()
	// each calls f for each run of elements with its places in x and in the selection.
	each := func(f func(inX, selected int)) {
		for block := range blocks {
			for i, index := range indices {
				if index < 0 || index >= length {
					index = 0
				}
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
		sumRuns(to, from.([]float64), run, each)
	case []float32:
		sumRuns(to, from.([]float32), run, each)
	default:
		return fmt.Errorf("the gradient is %T, want []float32 or []float64", to)
	}
	return nil
}

// sumRuns sets dx to the sum of the runs of dy at their places.
func sumRuns[T cpu.Float](dx, dy []T, run int, each func(f func(inX, selected int))) {
	clear(dx)
	each(func(inX, selected int) { cpu.Add(dx[inX:][:run], dx[inX:][:run], dy[selected:][:run]) })
}

func rowMajorData(v G.Value) (any, error) {
	d, ok := toRowMajor(v).(*tensor.Dense)
	if !ok || !isPlainRowMajor(d) {
		return nil, fmt.Errorf("got a %T that is not row-major", v)
	}
	return d.Data(), nil
}
