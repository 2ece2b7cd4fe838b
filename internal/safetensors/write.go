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
)

// Write writes f to path: tensors in the order of their names, the data aligned to 8 bytes. path holds either what it
// held before or all of f. The bytes depend on f alone. The error names the path and, where one is at fault, the tensor.
func Write(path string, f *File) error {
	if err := write(path, f); err != nil {
		return fmt.Errorf("safetensors: %s: %w", path, err)
	}
	return nil
}

func write(path string, f *File) error {
	head, names, err := header(f)
	if err != nil {
		return err
	}
	// Only a failed write can make encode fail, and after a failed write Close leaves the old file in place.
	w, err := atomicwriter.New(path, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(encode(w, head, names, f), w.Close())
}

// header checks f and returns its header, padded with spaces to a multiple of 8 bytes, and its tensors' names in order.
func header(f *File) (head []byte, names []string, err error) {
	if f == nil {
		return nil, nil, errors.New("nil file")
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
	names = slices.Sorted(maps.Keys(f.Tensors))
	pos := 0
	for _, name := range names {
		t := f.Tensors[name]
		dtype, size, err := t.check()
		switch {
		case err != nil:
			return nil, nil, fmt.Errorf("tensor %q: %w", name, err)
		case name == metadataKey || !utf8.ValidString(name):
			return nil, nil, fmt.Errorf("tensor %q: not a valid name", name)
		}
		shape := append([]int{}, t.Shape...) // nil would be null
		entries[name] = struct {
			Dtype   string `json:"dtype"`
			Shape   []int  `json:"shape"`
			Offsets [2]int `json:"data_offsets"`
		}{dtype.name, shape, [2]int{pos, pos + size}}
		pos += size
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
	return head, names, nil
}

// encode writes the whole file to w, in pieces.
func encode(w io.Writer, head []byte, names []string, f *File) error {
	b := bufio.NewWriterSize(w, 1<<18)
	b.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(head)))) // Flush returns the first error of b
	b.Write(head)
	for _, name := range names {
		data := reflect.ValueOf(f.Tensors[name].Data)
		for i := 0; i < data.Len(); i += chunk {
			if err := binary.Write(b, binary.LittleEndian, data.Slice(i, min(i+chunk, data.Len())).Interface()); err != nil {
				return fmt.Errorf("tensor %q: %w", name, err)
			}
		}
	}
	return b.Flush()
}
