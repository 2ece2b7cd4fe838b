package kernels

import (
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Type is the storage type of an array's elements. Sums are float32 or wider for every Type.
type Type int32

// Storage types; the values are those of common.cuh.
const (
	F32  Type = iota // float
	BF16             // __nv_bfloat16
	F16              // __half
)

var typeNames = [...]string{F32: "f32", BF16: "bf16", F16: "f16"}

// Bytes returns the size of an element.
func (t Type) Bytes() int {
	if t == F32 {
		return 4
	}
	return 2
}

// Lanes returns the number of elements in 16 bytes.
func (t Type) Lanes() int64 { return int64(16 / t.Bytes()) }

// String returns f32, bf16 or f16, the suffix of kernel names.
func (t Type) String() string {
	if t < 0 || int(t) >= len(typeNames) {
		return fmt.Sprintf("Type(%d)", int32(t))
	}
	return typeNames[t]
}

// Name returns the kernel of an op for the type: nsa_rope_bf16 of "rope".
func (t Type) Name(op string) string { return "nsa_" + op + "_" + t.String() }

// TypeOf returns the storage type of float32, spec.BFloat16 and spec.Float16.
func TypeOf(dt tensor.Dtype) (Type, error) {
	switch dt {
	case tensor.Float32:
		return F32, nil
	case spec.BFloat16:
		return BF16, nil
	case spec.Float16:
		return F16, nil
	}
	return 0, graph.Refuse(graph.ReasonType, "got %v, want float32 or half precision", dt)
}
