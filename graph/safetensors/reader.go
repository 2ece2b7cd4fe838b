package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/half"
	"github.com/gorgonia-nsa/nsa/internal/quote"
)

// Reader reads single tensors of an open file. Its methods, but Close, may be called from several goroutines.
type Reader struct {
	path     string
	file     *files.Mapped
	metadata map[string]string
	start    int64 // of the data
	spans    []span
	byName   map[string]span
}

// Open opens the file at path and reads its header. The file has to be closed.
func Open(path string) (*Reader, error) {
	file, err := files.OpenMapped(path)
	if err != nil {
		return nil, fault.In("safetensors", path, quote.Error(err))
	}
	r := &Reader{path: path, file: file, byName: map[string]span{}}
	if r.metadata, r.spans, r.start, err = readSpans(file, file.Size()); err != nil {
		return nil, fault.In("safetensors", path, quote.Error(errors.Join(err, file.Close())))
	}
	for _, s := range r.spans {
		r.byName[s.name] = s
	}
	return r, nil
}

// Close closes the file.
func (r *Reader) Close() error {
	if r.file == nil {
		return nil
	}
	return fault.In("safetensors", r.path, r.file.Close())
}

// Metadata returns the free text of the header, nil if there is none.
func (r *Reader) Metadata() map[string]string { return r.metadata }

// Names returns the names of the tensors in the order of their data.
func (r *Reader) Names() []string {
	names := make([]string, len(r.spans))
	for i, s := range r.spans {
		names[i] = s.name
	}
	return names
}

// Shape returns the shape of a tensor, which is not nil, and whether there is one of this name.
func (r *Reader) Shape(name string) (shape []int, ok bool) {
	s, ok := r.byName[name]
	return slices.Clone(s.shape), ok
}

// Type returns the type of a tensor as the format calls it, such as BF16; "" if there is no tensor of this name.
func (r *Reader) Type(name string) string { return r.byName[name].dtype.name }

// Read reads a tensor of F32, BF16 or F16 into dst, row-major, on all cores. dst has as many elements as the tensor.
func (r *Reader) Read(name string, dst []float32) error {
	s, ok := r.byName[name]
	size, n := s.dtype.size, s.end-s.begin
	var err error
	switch {
	case !ok:
		err = errors.New("not in the file")
	case s.dtype.memory != tensor.Float32:
		err = fmt.Errorf("type %s, want F32, BF16 or F16", s.dtype.name)
	case int64(len(dst)) != n/int64(size):
		err = fmt.Errorf("%v has %d elements, the destination has %d", s.shape, n/int64(size), len(dst))
	default:
		err = r.file.Pieces(r.start+s.begin, n, size, func(at int64, part []byte) {
			s.dtype.float32s(dst[int(at)/size:][:len(part)/size], part)
		})
	}
	if err != nil {
		return fault.In("safetensors", r.path, quote.Error(fmt.Errorf("tensor %q: %w", name, err)))
	}
	return nil
}

// float32s converts elements of a file to float32.
func (d dtype) float32s(dst []float32, from []byte) {
	switch d.name {
	case "F32":
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(from[4*i:]))
		}
	case "BF16":
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(from[2*i:])) << 16)
		}
	case "F16":
		for i := range dst {
			dst[i] = half.Float32(binary.LittleEndian.Uint16(from[2*i:]))
		}
	}
}
