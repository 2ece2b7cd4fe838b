// Package safetensors reads and writes the safetensors format: an 8-byte little-endian length, a JSON header of names,
// types, shapes and byte ranges, then the tensors' bytes, row-major and little-endian
// (https://github.com/huggingface/safetensors#format). Four element types are known: F64, F32, I64, I32; a file that
// holds any other is refused.
//
// A header is checked whole before a byte of data is read: ranges must lie in the file, match their shapes, and cover
// the data without gap or overlap. Every error names the file, where there is one, and the tensor.
package safetensors

import (
	"fmt"
	"math"
)

// metadataKey is the header's entry that holds the metadata and is no tensor.
const metadataKey = "__metadata__"

// maxHeader is the largest header in bytes, the limit of the format's own implementation.
const maxHeader = 100 << 20

// File is the content of a safetensors file. The zero value is an empty file.
type File struct {
	// Metadata is the free text of the header, nil for none.
	Metadata map[string]string
	// Tensors are the tensors by name.
	Tensors map[string]*Tensor
}

// Tensor is one named array of a File.
type Tensor struct {
	// Dtype is the element type: "F64", "F32", "I64" or "I32".
	Dtype string
	// Shape holds the axes, outermost first. No axes: a scalar of one element. An axis of 0: no elements.
	Shape []int
	// Data holds the elements, row-major: []float64, []float32, []int64 or []int32, as Dtype says.
	Data any
}

// elemSize returns the bytes of one element of dtype; ok is false for a type that is not known.
func elemSize(dtype string) (size int, ok bool) {
	switch dtype {
	case "F64", "I64":
		return 8, true
	case "F32", "I32":
		return 4, true
	}
	return 0, false
}

// numElements returns the number of elements of shape: an error for a negative axis or an overflowing product.
func numElements(shape []int) (int, error) {
	n := 1
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("shape %v: negative axis", shape)
		}
		if d != 0 && n > math.MaxInt/d {
			return 0, fmt.Errorf("shape %v: number of elements overflows", shape)
		}
		n *= d
	}
	return n, nil
}

// numBytes returns the bytes of a tensor of this type and shape.
func numBytes(dtype string, shape []int) (int, error) {
	size, ok := elemSize(dtype)
	if !ok {
		return 0, fmt.Errorf("dtype %q not supported, want F64, F32, I64 or I32", dtype)
	}
	n, err := numElements(shape)
	if err != nil {
		return 0, err
	}
	if n > math.MaxInt/size {
		return 0, fmt.Errorf("shape %v: number of bytes overflows", shape)
	}
	return n * size, nil
}

// check reports whether a tensor is fit to be written: its data have the type and the length that it claims.
func (t *Tensor) check() error {
	if t == nil {
		return fmt.Errorf("nil tensor")
	}
	if _, err := numBytes(t.Dtype, t.Shape); err != nil {
		return err
	}
	var dtype string
	var got int
	switch d := t.Data.(type) {
	case []float64:
		dtype, got = "F64", len(d)
	case []float32:
		dtype, got = "F32", len(d)
	case []int64:
		dtype, got = "I64", len(d)
	case []int32:
		dtype, got = "I32", len(d)
	default:
		return fmt.Errorf("data of type %T, want []float64, []float32, []int64 or []int32", t.Data)
	}
	if dtype != t.Dtype {
		return fmt.Errorf("dtype %s with data of type %T", t.Dtype, t.Data)
	}
	if want, _ := numElements(t.Shape); got != want {
		return fmt.Errorf("shape %v wants %d elements, got %d", t.Shape, want, got)
	}
	return nil
}
