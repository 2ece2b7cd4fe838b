// Package safetensors reads and writes the safetensors format: an 8-byte little-endian length, a JSON header of names,
// types, shapes and byte ranges, then the tensors' bytes, row-major and little-endian
// (https://github.com/huggingface/safetensors#format). It reads and writes F64, F32, I64 and I32, and reads BF16 and
// F16 as float32, which holds them exactly. A file with any other type is refused.
//
// The whole header is checked before any data is read: it is UTF-8, each name appears once, and the ranges lie in the
// file, match their shapes, and cover the data without gap or overlap. Data is read and written in pieces: a tensor is
// in memory once. Errors name the file, if there is one, and the tensor.
package safetensors

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"unicode/utf8"

	"github.com/moby/sys/atomicwriter"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/fault"
)

// metadataKey is the entry of the header that holds the metadata, not a tensor.
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
	name   string
	size   int          // bytes of an element in a file
	memory tensor.Dtype // type in memory
}

// dtypes are the element types that can be read. A tensor.Dtype is written as the first one in the list with this type.
var dtypes = []dtype{
	{"F64", 8, tensor.Float64},
	{"F32", 4, tensor.Float32},
	{"BF16", 2, tensor.Float32},
	{"F16", 2, tensor.Float32},
	{"I64", 8, tensor.Int64},
	{"I32", 4, tensor.Int32},
}

// entry is a tensor in the header.
type entry struct {
	Dtype   string  `json:"dtype"`
	Shape   []int   `json:"shape"`
	Offsets []int64 `json:"data_offsets"`
}

// elements returns the elements of a tensor in host memory as a slice, row-major. It copies those of a view.
func elements(t *tensor.Dense) (any, error) {
	switch {
	case t == nil:
		return nil, errors.New("nil tensor")
	case t.Dtype().Type == nil:
		return nil, errors.New("a tensor without a type")
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

// Write writes f to path: tensors in the order of their names, the first one aligned to 8 bytes, a view as the elements
// that it shows. A column-major tensor is an error. At any time path holds either its old content or all of f. The
// bytes depend on f alone. Errors name the path and, if one is at fault, the tensor.
func (f File) Write(path string) (err error) {
	defer func() {
		if err != nil {
			err = fault.In("safetensors", path, err)
		}
	}()
	head, data, err := f.header()
	if err != nil {
		return err
	}
	// encode fails only if a write fails. Close then leaves the old file in place.
	w, err := atomicwriter.New(path, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(encode(w, head, data), w.Close())
}

// header checks f and returns its header, padded with spaces to a multiple of 8 bytes, and the data of its tensors in
// order, a slice for each.
func (f File) header() (head []byte, data []reflect.Value, err error) {
	for k, v := range f.Metadata {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return nil, nil, fmt.Errorf("metadata %q: not UTF-8", k)
		}
	}
	entries := make(map[string]any, 1+len(f.Tensors))
	if len(f.Metadata) > 0 {
		entries[metadataKey] = f.Metadata
	}
	pos := 0
	for _, name := range slices.Sorted(maps.Keys(f.Tensors)) {
		if name == metadataKey || !utf8.ValidString(name) {
			return nil, nil, fmt.Errorf("tensor %q: not a valid name", name)
		}
		t := f.Tensors[name]
		all, err := elements(t)
		if err != nil {
			return nil, nil, fmt.Errorf("tensor %q: %w", name, err)
		}
		data = append(data, reflect.ValueOf(all))
		d := dtypes[slices.IndexFunc(dtypes, func(d dtype) bool { return d.memory == t.Dtype() })]
		end := pos + d.size*reflect.ValueOf(all).Len()
		// a nil shape would be null
		entries[name] = entry{d.name, append([]int{}, t.Shape()...), []int64{int64(pos), int64(end)}}
		pos = end
	}
	if head, err = json.Marshal(entries); err != nil {
		return nil, nil, err
	}
	for len(head)%8 != 0 {
		head = append(head, ' ')
	}
	if len(head) > maxHeader {
		return nil, nil, fmt.Errorf("header of %d bytes, want at most %d", len(head), maxHeader)
	}
	return head, data, nil
}

// encode writes the whole file to w, in pieces.
func encode(w io.Writer, head []byte, data []reflect.Value) error {
	b := bufio.NewWriterSize(w, 1<<18)
	b.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(head)))) // Flush returns the first error of b
	b.Write(head)
	for _, all := range data {
		for i := 0; i < all.Len(); i += chunk {
			part := all.Slice(i, min(i+chunk, all.Len())).Interface()
			if err := binary.Write(b, binary.LittleEndian, part); err != nil {
				return err
			}
		}
	}
	return b.Flush()
}
