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
	"slices"

	"gorgonia.org/tensor"
)

// metadataKey is the entry of the header that holds the metadata and is no tensor.
const metadataKey = "__metadata__"

// maxHeader is the largest header in bytes. The format's reference implementation has the same limit.
const maxHeader = 100 << 20

// chunk is the number of elements that are read or written at a time.
const chunk = 8 << 10

// File is the content of a safetensors file. The zero value is an empty file.
type File struct {
	Tensors  map[string]*tensor.Dense // by name
	Metadata map[string]string        // free text of the header, nil for none
}

// dtype is an element type of the format.
type dtype struct {
	name string
	size int          // bytes of an element in a file
	of   tensor.Dtype // in memory
}

// dtypes are the element types that are read; the first one of a tensor.Dtype is the one that it is written as.
var dtypes = []dtype{
	{"F64", 8, tensor.Float64},
	{"F32", 4, tensor.Float32},
	{"BF16", 2, tensor.Float32},
	{"F16", 2, tensor.Float32},
	{"I64", 8, tensor.Int64},
	{"I32", 4, tensor.Int32},
}

// elements returns the elements of a tensor in host memory as a slice, row-major: a view's are copied.
func elements(t *tensor.Dense) (any, error) {
	switch {
	case t == nil:
		return nil, errors.New("nil tensor")
	case !t.IsNativelyAccessible():
		return nil, errors.New("in memory that the host cannot read")
	}
	if t.IsMaterializable() {
		t = t.Materialize().(*tensor.Dense)
	}
	if t.DataOrder().IsColMajor() {
		return nil, errors.New("column-major, want row-major")
	}
	switch t.Dtype() {
	case tensor.Float64:
		return t.Float64s(), nil
	case tensor.Float32:
		return t.Float32s(), nil
	case tensor.Int64:
		return t.Int64s(), nil
	case tensor.Int32:
		return t.Int32s(), nil
	}
	return nil, fmt.Errorf("type %v, want float64, float32, int64 or int32", t.Dtype())
}

// count returns the number of elements of a tensor, each of size bytes.
func count(shape []int, size int) (int, error) {
	n := size
	for _, d := range shape {
		switch {
		case d < 0:
			return 0, fmt.Errorf("shape %v: negative axis", shape)
		case d > 0 && n > math.MaxInt/d:
			return 0, fmt.Errorf("shape %v: number of bytes overflows", shape)
		case d > 0:
			n *= d
		}
	}
	if slices.Contains(shape, 0) {
		return 0, nil
	}
	return n / size, nil
}
