// Package safetensors reads and writes the safetensors format: an 8-byte little-endian length, a JSON header of names,
// types, shapes and byte ranges, then the tensors' bytes, row-major and little-endian
// (https://github.com/huggingface/safetensors#format). It reads and writes F64, F32, I64 and I32, and reads BF16 and
// F16 as float32, which holds them exactly. A file with any other type is refused. Read reads a whole file, a Reader
// single tensors of a file that may be larger than memory.
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
	"math"
	"reflect"
	"slices"
	"unicode/utf8"

	"github.com/moby/sys/atomicwriter"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/half"
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
	name     string
	size     int          // bytes of an element in a file
	memory   tensor.Dtype // type in memory
	overflow float64      // of half precision: the least magnitude that rounds to infinity
}

// dtypes are the element types that can be read. A tensor.Dtype is written as the first one in the list with this type.
var dtypes = []dtype{
	{"F64", 8, tensor.Float64, 0},
	{"F32", 4, tensor.Float32, 0},
	{"BF16", 2, tensor.Float32, 0x1.ffp127},
	{"F16", 2, tensor.Float32, half.Overflow},
	{"I64", 8, tensor.Int64, 0},
	{"I32", 4, tensor.Int32, 0},
}

// dtypeOf returns the first type in dtypes that is as asked.
func dtypeOf(is func(dtype) bool) (dtype, bool) {
	if i := slices.IndexFunc(dtypes, is); i >= 0 {
		return dtypes[i], true
	}
	return dtype{}, false
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
func (f File) Write(path string) error { return f.WriteAs(path, "F32") }

// WriteAs is Write with tensors of float32 as "F32", "BF16" or "F16", rounded to nearest even. A finite number that
// would become infinite is an error.
func (f File) WriteAs(path, dtype string) (err error) {
	defer func() {
		if err != nil {
			err = fault.In("safetensors", path, err)
		}
	}()
	head, data, err := f.header(dtype)
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

// content is the elements of a tensor, a slice, and their type in a file.
type content struct {
	all   reflect.Value
	dtype dtype
}

// header checks f and returns its header, padded with spaces to a multiple of 8 bytes, and its tensors in order.
// Tensors of float32 are written as the given type.
func (f File) header(float32As string) (head []byte, data []content, err error) {
	as, ok := dtypeOf(func(d dtype) bool { return d.name == float32As && d.memory == tensor.Float32 })
	if !ok {
		return nil, nil, fmt.Errorf("type %q for float32, want F32, BF16 or F16", float32As)
	}
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
		d := as
		if t.Dtype() != tensor.Float32 {
			d, _ = dtypeOf(func(d dtype) bool { return d.memory == t.Dtype() })
		}
		if i := d.indexOverflow(all); i >= 0 {
			return nil, nil, fmt.Errorf("tensor %q: element %d is %v, which %s does not hold", name, i, t.Get(i), d.name)
		}
		data = append(data, content{reflect.ValueOf(all), d})
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

// indexOverflow returns the index of the first number that is finite but infinite as d, -1 if there is none.
func (d dtype) indexOverflow(all any) int {
	list, ok := all.([]float32)
	if !ok || d.overflow == 0 {
		return -1
	}
	return slices.IndexFunc(list, func(x float32) bool {
		magnitude := math.Abs(float64(x))
		return magnitude >= d.overflow && magnitude <= math.MaxFloat32
	})
}

// encode writes the whole file to w, in pieces.
func encode(w io.Writer, head []byte, data []content) error {
	b := bufio.NewWriterSize(w, 1<<18)
	b.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(head)))) // Flush returns the first error of b
	b.Write(head)
	for _, c := range data {
		for i := 0; i < c.all.Len(); i += chunk {
			part := c.all.Slice(i, min(i+chunk, c.all.Len())).Interface()
			if c.dtype.size == 2 {
				part = narrow(part.([]float32), c.dtype.name == "BF16")
			}
			if err := binary.Write(b, binary.LittleEndian, part); err != nil {
				return err
			}
		}
	}
	return b.Flush()
}

// narrow rounds float32 to half precision, bfloat16 or float16.
func narrow(from []float32, bfloat16 bool) []uint16 {
	to := make([]uint16, len(from))
	if bfloat16 {
		rounded := make([]cpu.BFloat16, len(from))
		cpu.RoundBF16(rounded, from)
		for i, h := range rounded {
			to[i] = uint16(h)
		}
		return to
	}
	for i, x := range from {
		to[i] = half.Round(x)
	}
	return to
}
