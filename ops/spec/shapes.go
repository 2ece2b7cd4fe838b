package spec

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/value"
)

// WantInputs checks the number of inputs and the rank and type of each. An index is int32. All others are float32, or
// all are float64.
func WantInputs(in []Operand, want ...InputRule) error {
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
			if w.rank == 4 {
				more += ": [B,S,H,D]"
			}
			return fmt.Errorf("%s has rank %d %v, want rank %d%s", w.Name, got, in[i].Shape, w.rank, more)
		}
		if w.index {
			if in[i].Dtype != tensor.Int32 {
				return fmt.Errorf("%s is %s, want int32", w.Name, value.TypeName(in[i].Dtype))
			}
			continue
		}
		if in[i].Dtype != tensor.Float32 && in[i].Dtype != tensor.Float64 {
			return fmt.Errorf("%s is %s, want float32 or float64", w.Name, value.TypeName(in[i].Dtype))
		}
		if float == (tensor.Dtype{}) {
			float = in[i].Dtype
		}
		if in[i].Dtype != float {
			return fmt.Errorf("%s is %v, the inputs before it are %v", w.Name, in[i].Dtype, float)
		}
	}
	return nil
}

// InputRule is what WantInputs requires of one input.
type InputRule struct {
	Name  string
	rank  int
	more  bool // more axes than rank are allowed
	index bool // int32
}

// FloatInput requires floats of the given rank.
func FloatInput(name string, rank int) InputRule { return InputRule{Name: name, rank: rank} }

// IndexInput requires int32 of the given rank.
func IndexInput(name string, rank int) InputRule {
	return InputRule{Name: name, rank: rank, index: true}
}

// OrMore allows more axes than the rank.
func (i InputRule) OrMore() InputRule {
	i.more = true
	return i
}

// WantShape checks one input's shape.
func WantShape(name string, got tensor.Shape, want ...int) error {
	if !slices.Equal(got, want) { // Shape.Eq takes (n,1) for (n)
		return fmt.Errorf("%s has shape %v, want %v", name, got, tensor.Shape(want))
	}
	return nil
}

// LikeOutput is an input after those of the forward op, with the shape of one of its outputs: a saved output, a
// gradient, or a residual.
type LikeOutput struct {
	Name   string
	Output int // index of the forward output that has the same shape
}

// InferWithMore checks the inputs of a gradient op, or of an op fused with forward: the n inputs of forward, then those
// in more. It returns the first n.
func InferWithMore(forward Spec, n int, in []Operand, more ...LikeOutput) ([]Operand, error) {
	if len(in) != n+len(more) {
		names := make([]string, len(more))
		for i, m := range more {
			names[i] = m.Name
		}
		return nil, fmt.Errorf("%d inputs, want those of %s and %s", len(in), forward.Name(), strings.Join(names, ", "))
	}
	out, err := forward.Infer(in[:n])
	if err != nil {
		return nil, err
	}
	for i, m := range more {
		if got := in[n+i]; got.Dtype != in[0].Dtype {
			return nil, fmt.Errorf("%s is %v, the inputs before it are %v", m.Name, got.Dtype, in[0].Dtype)
		}
		if err := WantShape(m.Name, in[n+i].Shape, out[m.Output].Shape...); err != nil {
			return nil, err
		}
	}
	return in[:n], nil
}

// WantPositive checks that a parameter is at least 1.
func WantPositive(name string, v int) error {
	if v < 1 {
		return fmt.Errorf("%s is %d, want at least 1", name, v)
	}
	return nil
}

// WantPositiveFloat checks that a parameter is a finite number above 0.
func WantPositiveFloat(name string, v float64) error {
	if !(v > 0) || math.IsInf(v, 1) {
		return fmt.Errorf("%s is %v, want a positive number", name, v)
	}
	return nil
}

// Numbered returns the name of input i among several of one kind, such as "branch 0".
func Numbered(name string, i int) string { return fmt.Sprintf("%s %d", name, i) }
