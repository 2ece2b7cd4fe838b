// Package safetensors reads and writes the safetensors format: an 8-byte little-endian length, a JSON header of names,
// types, shapes and byte ranges, then the tensors' bytes, row-major and little-endian
// (https://github.com/huggingface/safetensors#format). It reads and writes F64, F32, I64 and I32, and reads BF16 and F16 as
// float32, which holds them exactly. A file with any other type is refused.
//
// The whole header is checked before any data is read: no name may appear twice, and ranges must lie in the file, match their
// shapes, and cover the data without gap or overlap. Data are read and written in pieces: a tensor is in memory once.
// Errors name the file, where there is one, and the tensor.
package safetensors

import (
	"errors"
	"fmt"
	"math"
	"reflect"
)

// metadataKey is the entry of the header that holds the metadata and is no tensor.
const metadataKey = "__metadata__"

// maxHeader is the largest header in bytes. The format's reference implementation has the same limit.
const maxHeader = 100 << 20

// chunk is the number of elements that are read or written at a time.
const chunk = 8 << 10

// File is the content of a safetensors file. The zero value is an empty file.
type File struct {
	// Metadata is the free text of the header, nil for none.
	Metadata map[string]string
	// Tensors are the tensors by name.
	Tensors map[string]*Tensor
}

// Tensor is one named array of a File.
type Tensor struct {
	// Dtype is the type of Data: "F64", "F32", "I64" or "I32".
	Dtype string
	// Shape holds the axes, outermost first. No axes: a scalar of one element. An axis of 0: no elements.
	Shape []int
	// Data holds the elements, row-major: []float64, []float32, []int64 or []int32, as Dtype says.
	Data any
}

// dtypeOf returns the type of data, "" for a slice that a Tensor cannot hold.
func dtypeOf(data any) string {
	switch data.(type) {
	case []float64:
		return "F64"
	case []float32:
		return "F32"
	case []int64:
		return "I64"
	case []int32:
		return "I32"
	}
	return ""
}

// elementBytes returns the size of one element in a file, 0 for a type that is not supported.
func elementBytes(dtype string) int {
	switch dtype {
	case "F64", "I64":
		return 8
	case "F32", "I32":
		return 4
	case "BF16", "F16":
		return 2
	}
	return 0
}

// elements returns the number of elements of a tensor, each of size bytes.
func elements(shape []int, size int) (int, error) {
	n, empty := size, false
	for _, d := range shape {
		switch {
		case d < 0:
			return 0, fmt.Errorf("shape %v: negative axis", shape)
		case d == 0:
			empty = true
		case n > math.MaxInt/d:
			return 0, fmt.Errorf("shape %v: number of bytes overflows", shape)
		default:
			n *= d
		}
	}
	if empty {
		return 0, nil
	}
	return n / size, nil
}

// check checks a tensor that is to be written and returns its number of bytes.
func (t *Tensor) check() (int, error) {
	if t == nil {
		return 0, errors.New("nil tensor")
	}
	switch dtypeOf(t.Data) {
	case "":
		return 0, fmt.Errorf("data of type %T, want []float64, []float32, []int64 or []int32", t.Data)
	case t.Dtype:
	default:
		return 0, fmt.Errorf("dtype %q with data of type %T", t.Dtype, t.Data)
	}
	size := elementBytes(t.Dtype)
	want, err := elements(t.Shape, size)
	if err != nil {
		return 0, err
	}
	if got := reflect.ValueOf(t.Data).Len(); got != want {
		return 0, fmt.Errorf("shape %v wants %d elements, got %d", t.Shape, want, got)
	}
	return want * size, nil
}
