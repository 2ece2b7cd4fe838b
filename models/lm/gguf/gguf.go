// Package gguf reads GGUF, the format of ggml and llama.cpp for a model in one file: metadata and tensors, many of them
// quantized (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). It reads versions 2 and 3, little-endian, and
// tensors of F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q5_K and Q6_K as float32. A file with any other type is refused,
// and so are arrays of arrays in the metadata and one file of a model that is split over several.
//
// The whole header is checked before any data is read: each name appears once, and the ranges of the tensors lie in the
// file, are aligned and do not overlap. Errors name the file and the tensor or key.
package gguf

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/quote"
)

const (
	maxDims          = 4 // of a tensor, as in ggml
	defaultAlignment = 32
)

// File is an open file. Its methods, but Close, may be called from several goroutines. After Close it still has its
// metadata.
type File struct {
	path     string
	file     *files.Mapped
	metadata map[string]value
	names    []string // of the tensors, in the order of the header
	tensors  map[string]tensor
	head     int64 // bytes before the descriptions of the tensors
}

// tensor is where and what a tensor is.
type tensor struct {
	name     string
	shape    []int // row-major
	elements int
	format   format
	offset   uint64 // of the file; in the header, of the data
}

func (t tensor) bytes() int64 { return int64(t.elements / t.format.elements * t.format.bytes) }

// Open opens the file at path and reads its header. The file has to be closed.
func Open(path string) (*File, error) {
	file, err := files.OpenMapped(path)
	if err != nil {
		return nil, fault.In("gguf", path, quote.Error(err))
	}
	f := &File{path: path, file: file, metadata: map[string]value{}, tensors: map[string]tensor{}}
	if err := f.readHeader(); err != nil {
		return nil, fault.In("gguf", path, quote.Error(errors.Join(err, file.Close())))
	}
	return f, nil
}

// Close closes the file.
func (f *File) Close() error {
	if f.file == nil {
		return nil
	}
	return fault.In("gguf", f.path, f.file.Close())
}

// Names returns the names of the tensors in the order of the header.
func (f *File) Names() []string { return slices.Clone(f.names) }

// Shape returns the shape of a tensor in row-major order, which is the reverse of the order in the file, and whether
// there is a tensor of this name.
func (f *File) Shape(name string) (shape []int, ok bool) {
	t, ok := f.tensors[name]
	return slices.Clone(t.shape), ok
}

// Type returns the type of a tensor as ggml calls it, such as Q4_K; "" if there is no tensor of this name.
func (f *File) Type(name string) string { return f.tensors[name].format.name }

// Read reads a tensor into dst, row-major, on all cores. dst has as many elements as the tensor.
func (f *File) Read(name string, dst []float32) error {
	t, ok := f.tensors[name]
	var err error
	switch {
	case !ok:
		err = errors.New("not in the file")
	case len(dst) != t.elements:
		err = fmt.Errorf("%v has %d elements, the destination has %d", t.shape, t.elements, len(dst))
	default:
		from := t.format
		err = f.file.Pieces(int64(t.offset), t.bytes(), from.bytes, func(at int64, part []byte) {
			first, n := int(at)/from.bytes*from.elements, len(part)/from.bytes*from.elements
			from.decode(dst[first:][:n], part)
		})
	}
	if err != nil {
		return fault.In("gguf", f.path, quote.Error(fmt.Errorf("tensor %q: %w", name, err)))
	}
	return nil
}

// MetadataAlone returns the content of a file that has the metadata of f and no tensors.
func (f *File) MetadataAlone() ([]byte, error) {
	if f.file == nil {
		return nil, errors.New("gguf: no file")
	}
	content := make([]byte, f.head)
	if _, err := f.file.ReadAt(content, 0); err != nil {
		return nil, fault.In("gguf", f.path, err)
	}
	clear(content[8:16]) // the number of tensors
	return content, nil
}

// readHeader reads and checks all that comes before the data.
func (f *File) readHeader() error {
	h := newHeader(f.file, f.file.Size())
	if magic := h.bytes(4); h.err == nil && string(magic) != "GGUF" {
		return fmt.Errorf("the file begins with %q, want GGUF", magic)
	}
	switch version := h.uint(4); {
	case h.err != nil:
		return h.err
	case version == 2<<24 || version == 3<<24:
		return errors.New("big-endian, want little-endian")
	case version != 2 && version != 3:
		return fmt.Errorf("version %d, want 2 or 3", version)
	}
	tensors, pairs := h.uint(8), h.uint(8)
	for range pairs {
		key := h.text()
		v := h.value()
		if h.err != nil {
			return fmt.Errorf("metadata %q: %w", key, h.err)
		}
		if _, twice := f.metadata[key]; twice {
			return fmt.Errorf("metadata %q appears twice", key)
		}
		f.metadata[key] = v
	}
	f.head = h.pos
	alignment, err := GetOr(f, "general.alignment", defaultAlignment)
	if err != nil {
		return err
	}
	if alignment <= 0 || alignment&(alignment-1) != 0 {
		return fmt.Errorf("general.alignment is %d, want a power of two", alignment)
	}
	if n, err := GetOr(f, "split.count", 1); err != nil || n > 1 {
		return cmp.Or(err, fmt.Errorf("one of %d files of a model, want a model in one file", n))
	}
	for range tensors {
		name := h.text()
		t, err := h.tensor()
		t.name = name
		if _, twice := f.tensors[name]; twice && err == nil {
			err = errors.New("appears twice")
		}
		if err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		f.names, f.tensors[name] = append(f.names, name), t
	}
	if h.err != nil {
		return h.err
	}
	return f.place(uint64(h.pos), uint64(alignment))
}

// place checks where the tensors are, and makes their offsets those of the file. The header ends at byte end.
func (f *File) place(end, alignment uint64) error {
	start, size := (end+alignment-1)/alignment*alignment, uint64(f.file.Size())
	pos := start
	for _, t := range slices.SortedFunc(maps.Values(f.tensors), func(a, b tensor) int {
		return cmp.Or(cmp.Compare(a.offset, b.offset), cmp.Compare(a.name, b.name))
	}) {
		n := uint64(t.bytes())
		switch offset := t.offset; {
		case offset%alignment != 0:
			return fmt.Errorf("tensor %q: offset %d, want a multiple of %d", t.name, offset, alignment)
		case start > size || n > size-start || offset > size-start-n:
			return fmt.Errorf("tensor %q: %d bytes at offset %d of the data, which begins at %d in a file of %d",
				t.name, n, offset, start, size)
		case start+offset < pos:
			return fmt.Errorf("tensor %q: offset %d is in the tensor before it, which ends at %d", t.name, offset,
				pos-start)
		}
		t.offset += start
		pos = t.offset + n
		f.tensors[t.name] = t
	}
	return nil
}
