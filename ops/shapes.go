package ops

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/value"
)

// wantInputs checks the number of inputs and the rank and type of each. An index is int32. All others are float32, or all are
// float64.
func wantInputs(in []Operand, want ...inputRule) error {
	if len(in) != len(want) {
		return fmt.Errorf("%d inputs, want %d", len(in), len(want))
	}
	if err := CheckSizes("input", in); err != nil { // Apply has done so, a caller of Infer alone has not
		return err
	}
	var float tensor.Dtype
	for i, w := range want {
		if got := in[i].Shape.Dims(); got < w.rank || got > w.rank && !w.more {
			more := map[bool]string{true: " or more"}[w.more]
			return fmt.Errorf("%s has rank %d %v, want rank %d%s", w.name, got, in[i].Shape, w.rank, more)
		}
		if w.index {
			if in[i].Dtype != tensor.Int32 {
				return fmt.Errorf("%s is %s, want int32", w.name, value.TypeName(in[i].Dtype))
			}
			continue
		}
		if in[i].Dtype != tensor.Float32 && in[i].Dtype != tensor.Float64 {
			return fmt.Errorf("%s is %s, want float32 or float64", w.name, value.TypeName(in[i].Dtype))
		}
		if float == (tensor.Dtype{}) {
			float = in[i].Dtype
		}
		if in[i].Dtype != float {
			return fmt.Errorf("%s is %v, the inputs before it are %v", w.name, in[i].Dtype, float)
		}
	}
	return nil
}

// inputRule is what wantInputs requires of one input.
type inputRule struct {
	name  string
	rank  int
	more  bool // more axes than rank are allowed
	index bool // int32
}

// floatInput requires floats of the given rank.
func floatInput(name string, rank int) inputRule { return inputRule{name: name, rank: rank} }

// indexInput requires int32 of the given rank.
func indexInput(name string, rank int) inputRule {
	return inputRule{name: name, rank: rank, index: true}
}

// orMore allows more axes than the rank.
func (i inputRule) orMore() inputRule {
	i.more = true
	return i
}

// wantShape checks one input's shape.
func wantShape(name string, got tensor.Shape, want ...int) error {
	if !slices.Equal(got, want) { // Shape.Eq takes (n,1) for (n)
		return fmt.Errorf("%s has shape %v, want %v", name, got, tensor.Shape(want))
	}
	return nil
}

// likeOutput is an input after those of the forward op, with the shape of one of its outputs: a saved output, a gradient, or a
// residual.
type likeOutput struct {
	name   string
	output int // index of the forward output that has the same shape
}

// inferWithMore checks the inputs of a gradient op, or of an op fused with forward: the n inputs of forward, then those in more. It
// returns the first n.
func inferWithMore(forward Spec, n int, in []Operand, more ...likeOutput) ([]Operand, error) {
	if len(in) != n+len(more) {
		names := make([]string, len(more))
		for i, m := range more {
			names[i] = m.name
		}
		return nil, fmt.Errorf("%d inputs, want those of %s and %s", len(in), forward.Name(), strings.Join(names, ", "))
	}
	out, err := forward.Infer(in[:n])
	if err != nil {
		return nil, err
	}
	for i, m := range more {
		if got := in[n+i]; got.Dtype != in[0].Dtype {
			return nil, fmt.Errorf("%s is %v, the inputs before it are %v", m.name, got.Dtype, in[0].Dtype)
		}
		if err := wantShape(m.name, in[n+i].Shape, out[m.output].Shape...); err != nil {
			return nil, err
		}
	}
	return in[:n], nil
}

// wantPositive checks that a parameter is at least 1.
func wantPositive(name string, v int) error {
	if v < 1 {
		return fmt.Errorf("%s is %d, want at least 1", name, v)
	}
	return nil
}

// wantPositiveFloat checks that a parameter is a finite number above 0.
func wantPositiveFloat(name string, v float64) error {
	if !(v > 0) || math.IsInf(v, 1) {
		return fmt.Errorf("%s is %v, want a positive number", name, v)
	}
	return nil
}

// numbered returns the name of input i among several of one kind, such as "branch 0".
func numbered(name string, i int) string { return fmt.Sprintf("%s %d", name, i) }
