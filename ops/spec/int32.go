package spec

import (
	"fmt"
	"math"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// Int32Input returns the input n of an op as int32: n itself, or its conversion if it is int. name is the input's name
// in errors.
func Int32Input(spec Spec, name string, n *gorgonia.Node) (*gorgonia.Node, error) {
	o, err := operandOf(n)
	switch {
	case err != nil || o.Dtype == tensor.Int32: // Apply returns the error of a wrong n
		return n, nil
	case o.Dtype == tensor.Int:
		return Apply(Int32{}, n)
	}
	return nil, ErrorIn(spec, fmt.Errorf("%s is %v, want int32 or int", name, o.Dtype))
}

// Int32 is the Spec of the conversion of int to int32, of any shape. Embedding, CrossEntropy and DocumentTable apply it
// to inputs of type int. It has only a CPU kernel: a device gets the converted numbers. A number outside the range of
// int32 is an error of the run.
type Int32 struct{}

func (Int32) Name() string { return "int32" }

func (Int32) Infer(in []Operand) ([]Operand, error) {
	if len(in) != 1 {
		return nil, fmt.Errorf("%d inputs, want 1", len(in))
	}
	if in[0].Dtype != tensor.Int {
		return nil, fmt.Errorf("x is %v, want int", in[0].Dtype)
	}
	return []Operand{{tensor.Int32, in[0].Shape}}, nil
}

func (Int32) Bind(k *cpu.Kernel, in, out []Arg) {
	k.Check = func() (err error) {
		defer AsValueError(&err)
		for i, x := range cpu.Slice[int](in[0].Buf) {
			if x < math.MinInt32 || x > math.MaxInt32 {
				return fmt.Errorf("%d at %v is outside the range of int32", x, in[0].Coordinates(i))
			}
		}
		return nil
	}
	BindRows(k, in[0].Elements(), 1, func(lo, hi int) {
		for i, x := range cpu.Slice[int](in[0].Buf)[lo:hi] {
			cpu.Slice[int32](out[0].Buf)[lo+i] = int32(x)
		}
	})
}
