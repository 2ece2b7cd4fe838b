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

// Write writes f to path: tensors in the order of their names, the data aligned to 8 bytes, a view as the elements that it
// shows. path holds either what it held before or all of f. The bytes depend on f alone. The error names the path and, where
// one is at fault, the tensor.
func (f File) Write(path string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("safetensors: %s: %w", path, err)
		}
	}()
	head, data, err := f.header()
	if err != nil {
		return err
	}
	// Only a failed write can make encode fail, and after a failed write Close leaves the old file in place.
	w, err := atomicwriter.New(path, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(encode(w, head, data), w.Close())
}

// header checks f and returns its header, padded with spaces to a multiple of 8 bytes, and its tensors' data in order, each a
// slice.
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
		d := dtypes[slices.IndexFunc(dtypes, func(d dtype) bool { return d.of == t.Dtype() })]
		end := pos + d.size*reflect.ValueOf(all).Len()
		entries[name] = struct {
			Dtype   string `json:"dtype"`
			Shape   []int  `json:"shape"`
			Offsets [2]int `json:"data_offsets"`
		}{d.name, append([]int{}, t.Shape()...), [2]int{pos, end}} // a nil shape would be null
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
			if err := binary.Write(b, binary.LittleEndian, all.Slice(i, min(i+chunk, all.Len())).Interface()); err != nil {
				return err
			}
		}
	}
	return b.Flush()
}
