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
	"slices"
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
	// Shape holds the axes, outermost first. No axes: a scalar of one element. An axis of 0: no elements.
	Shape []int
	// Data holds the elements, row-major: []float64, []float32, []int64 or []int32.
	Data any
}

// dtype is an element type of the format.
type dtype struct {
	name  string
	size  int          // bytes of an element in a file
	slice reflect.Type // of Tensor.Data
}

// dtypes are the element types that are read; the first one of a slice is the one that it is written as.
var dtypes = []dtype{
	{"F64", 8, reflect.TypeFor[[]float64]()},
	{"F32", 4, reflect.TypeFor[[]float32]()},
	{"BF16", 2, reflect.TypeFor[[]float32]()},
	{"F16", 2, reflect.TypeFor[[]float32]()},
	{"I64", 8, reflect.TypeFor[[]int64]()},
	{"I32", 4, reflect.TypeFor[[]int32]()},
}

// elements returns the number of elements of a tensor, each of size bytes.
func elements(shape []int, size int) (int, error) {
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

// check checks a tensor that is to be written and returns its type and its number of bytes.
func (t *Tensor) check() (d dtype, size int, err error) {
	if t == nil {
		return d, 0, errors.New("nil tensor")
	}
	i := slices.IndexFunc(dtypes, func(d dtype) bool { return d.slice == reflect.TypeOf(t.Data) })
	if i < 0 {
		return d, 0, fmt.Errorf("data of type %T, want []float64, []float32, []int64 or []int32", t.Data)
	}
	d = dtypes[i]
	want, err := elements(t.Shape, d.size)
	if got := reflect.ValueOf(t.Data).Len(); err == nil && got != want {
		err = fmt.Errorf("shape %v wants %d elements, got %d", t.Shape, want, got)
	}
	return d, want * d.size, err
}
