package spec

import (
	"errors"
	"fmt"
	"reflect"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

type (
	bfloat16 uint16
	float16  uint16
)

// The storage types of half precision. Only arrays in device memory have these types: no value on the host, no node of
// a graph.
var (
	BFloat16 = tensor.Dtype{Type: reflect.TypeFor[bfloat16]()} // 8 bits of exponent, 7 of fraction
	Float16  = tensor.Dtype{Type: reflect.TypeFor[float16]()}  // IEEE 754 binary16
)

// IsHalf reports whether dt is BFloat16 or Float16.
func IsHalf(dt tensor.Dtype) bool { return dt == BFloat16 || dt == Float16 }

// Cast is the Spec of a conversion between float32 and a type of half precision, rounded to nearest even: x -> y. A
// machine that computes in half precision inserts it where the type of an operand changes. It is no op of a graph. The
// CPU has a kernel for BFloat16.
type Cast struct {
	To tensor.Dtype
}

func (Cast) Name() string { return "cast" }

func (Cast) InsertedBy() string { return "a machine of half precision inserts it" }

func (op Cast) Infer(in []Operand) ([]Operand, error) {
	if len(in) != 1 {
		return nil, fmt.Errorf("%d inputs, want 1", len(in))
	}
	if from := in[0].Dtype; !(from == tensor.Float32 && IsHalf(op.To) || IsHalf(from) && op.To == tensor.Float32) {
		return nil, fmt.Errorf("from %v to %v, want float32 on one side and half precision on the other", from, op.To)
	}
	return []Operand{{op.To, in[0].Shape}}, nil
}

func (op Cast) Bind(k *cpu.Kernel, in, out []Arg) {
	if op.To == Float16 || in[0].Dtype == Float16 {
		k.Check = NoHalf
		return
	}
	bindCasts(k, in, out)
}

func (Cast) TakesBF16(_, _ []Arg) bool { return true }

// NoHalf is the Check of CPU kernels that would need Float16, or a cache in half precision: always an error.
func NoHalf() error { return errors.New("the cpu has no kernel for this type of half precision") }
