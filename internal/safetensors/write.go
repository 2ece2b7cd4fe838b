package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/gorgonia-nsa/nsa/internal/atomicfile"
)

// Write writes f to path: tensors in the order of their names, the data aligned to 8 bytes. path holds either what it
// held before or all of f. The bytes depend on f alone. The error names the path and, where one is at fault, the tensor.
func Write(path string, f *File) error {
	head, names, err := header(f)
	if err == nil {
		err = atomicfile.Write(path, func(w io.Writer) error { return encode(w, head, names, f) })
	}
	if err != nil {
		return fmt.Errorf("safetensors: %s: %w", path, err)
	}
	return nil
}

// header checks f and returns its header, padded with spaces to a multiple of 8 bytes, and its tensors' names in order.
func header(f *File) (head []byte, names []string, err error) {
	if f == nil {
		return nil, nil, errors.New("nil file")
	}
	var b bytes.Buffer
	b.WriteByte('{')
	if len(f.Metadata) > 0 {
		for k, v := range f.Metadata {
			if !utf8.ValidString(k) || !utf8.ValidString(v) {
				return nil, nil, fmt.Errorf("metadata %q: not UTF-8", k)
			}
		}
		text, err := json.Marshal(f.Metadata)
		if err != nil {
			return nil, nil, fmt.Errorf("metadata: %w", err)
		}
		fmt.Fprintf(&b, "%q:%s", metadataKey, text)
	}
	names = slices.Sorted(maps.Keys(f.Tensors))
	pos := 0
	for _, name := range names {
		t := f.Tensors[name]
		if err := t.check(); err != nil {
			return nil, nil, fmt.Errorf("tensor %q: %w", name, err)
		}
		if name == metadataKey || !utf8.ValidString(name) {
			return nil, nil, fmt.Errorf("tensor %q: not a valid name", name)
		}
		size, err := numBytes(t.Dtype, t.Shape)
		if err != nil {
			return nil, nil, fmt.Errorf("tensor %q: %w", name, err)
		}
		key, err := json.Marshal(name)
		if err != nil {
			return nil, nil, fmt.Errorf("tensor %q: %w", name, err)
		}
		shape, err := json.Marshal(append([]int{}, t.Shape...)) // nil would be null
		if err != nil {
			return nil, nil, fmt.Errorf("tensor %q: %w", name, err)
		}
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `%s:{"dtype":%q,"shape":%s,"data_offsets":[%d,%d]}`, key, t.Dtype, shape, pos, pos+size)
		pos += size
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	if b.Len() > maxHeader {
		return nil, nil, fmt.Errorf("header of %d bytes, want at most %d", b.Len(), maxHeader)
	}
	return b.Bytes(), names, nil
}

// encode writes the whole file to w.
func encode(w io.Writer, head []byte, names []string, f *File) error {
	if err := binary.Write(w, binary.LittleEndian, uint64(len(head))); err != nil {
		return err
	}
	if _, err := w.Write(head); err != nil {
		return err
	}
	for _, name := range names {
		if err := writeData(w, f.Tensors[name].Data); err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
	}
	return nil
}

func writeData(w io.Writer, data any) error {
	switch d := data.(type) {
	case []float64:
		return writeSlice(w, d)
	case []float32:
		return writeSlice(w, d)
	case []int64:
		return writeSlice(w, d)
	case []int32:
		return writeSlice(w, d)
	}
	return fmt.Errorf("data of type %T", data)
}

// writeSlice writes d in pieces: binary.Write copies what it is given.
func writeSlice[T float64 | float32 | int64 | int32](w io.Writer, d []T) error {
	for part := range slices.Chunk(d, 8<<10) {
		if err := binary.Write(w, binary.LittleEndian, part); err != nil {
			return err
		}
	}
	return nil
}
