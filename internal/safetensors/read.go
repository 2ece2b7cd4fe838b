package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// Read reads the file at path. Errors name the path and, where one is at fault, the tensor.
func Read(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("safetensors: %s: not a regular file", path)
	}
	file, err := decode(f, st.Size())
	if err != nil {
		return nil, fmt.Errorf("safetensors: %s: %w", path, err)
	}
	return file, nil
}

// Decode reads a file held in memory. The result does not alias data.
func Decode(data []byte) (*File, error) {
	file, err := decode(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	return file, nil
}

// entry is a tensor's line of the header. Pointers and nil slices tell what is missing.
type entry struct {
	Dtype   *string  `json:"dtype"`
	Shape   []*int64 `json:"shape"`
	Offsets []*int64 `json:"data_offsets"`
}

// span is a checked entry: the tensor without its data, and its byte range after the header.
type span struct {
	name       string
	tensor     *Tensor
	begin, end int64
}

// decode reads a file of size bytes from r.
func decode(r io.ReaderAt, size int64) (*File, error) {
	head, err := readHeader(r, size)
	if err != nil {
		return nil, err
	}
	metadata, spans, err := parseHeader(head)
	if err != nil {
		return nil, err
	}
	start := 8 + int64(len(head))
	if err := checkCover(spans, size-start); err != nil {
		return nil, err
	}
	if err := cpu.CheckMemory(int(size)); err != nil {
		return nil, err
	}
	file := &File{Metadata: metadata, Tensors: make(map[string]*Tensor, len(spans))}
	buf := make([]byte, 64<<10)
	for _, s := range spans {
		if err := readData(io.NewSectionReader(r, start+s.begin, s.end-s.begin), buf, s.tensor); err != nil {
			return nil, fmt.Errorf("tensor %q: %w", s.name, err)
		}
		file.Tensors[s.name] = s.tensor
	}
	return file, nil
}

// readHeader returns the JSON bytes of the header.
func readHeader(r io.ReaderAt, size int64) ([]byte, error) {
	var raw [8]byte
	if size < int64(len(raw)) {
		return nil, fmt.Errorf("truncated: %d bytes, want at least %d", size, len(raw))
	}
	if _, err := io.ReadFull(io.NewSectionReader(r, 0, 8), raw[:]); err != nil {
		return nil, fmt.Errorf("header length: %w", err)
	}
	n := binary.LittleEndian.Uint64(raw[:])
	if n > maxHeader {
		return nil, fmt.Errorf("header of %d bytes, want at most %d", n, maxHeader)
	}
	if int64(n) > size-8 {
		return nil, fmt.Errorf("truncated: header of %d bytes in a file of %d", n, size)
	}
	head := make([]byte, n)
	if _, err := io.ReadFull(io.NewSectionReader(r, 8, int64(n)), head); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	if n == 0 || head[0] != '{' {
		return nil, errors.New("header does not begin with {")
	}
	return head, nil
}

// parseHeader returns the metadata and the tensors of the header in the order of their names, each checked by itself:
// known type, sane shape, a range that begins at or after 0 and has the bytes of the shape.
func parseHeader(head []byte) (map[string]string, []span, error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(head, &raw); err != nil {
		return nil, nil, fmt.Errorf("header: %w", err)
	}
	var metadata map[string]string
	if m, ok := raw[metadataKey]; ok {
		var text map[string]*string
		if err := json.Unmarshal(m, &text); err != nil {
			return nil, nil, fmt.Errorf("metadata: %w", err)
		}
		metadata = make(map[string]string, len(text))
		for k, v := range text {
			if v == nil {
				return nil, nil, fmt.Errorf("metadata: %q is null, want a string", k)
			}
			metadata[k] = *v
		}
		delete(raw, metadataKey)
	}
	spans := make([]span, 0, len(raw))
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		var e entry
		if err := json.Unmarshal(raw[name], &e); err != nil {
			return nil, nil, fmt.Errorf("tensor %q: %w", name, err)
		}
		s, err := e.check(name)
		if err != nil {
			return nil, nil, fmt.Errorf("tensor %q: %w", name, err)
		}
		spans = append(spans, s)
	}
	return metadata, spans, nil
}

func (e *entry) check(name string) (span, error) {
	switch {
	case e.Dtype == nil:
		return span{}, errors.New("no dtype")
	case e.Shape == nil:
		return span{}, errors.New("no shape")
	case len(e.Offsets) != 2 || e.Offsets[0] == nil || e.Offsets[1] == nil:
		return span{}, errors.New("data_offsets is not a pair of numbers")
	}
	shape := make([]int, len(e.Shape))
	for i, d := range e.Shape {
		if d == nil || *d < 0 || *d > math.MaxInt {
			return span{}, fmt.Errorf("axis %d is not a valid size", i)
		}
		shape[i] = int(*d)
	}
	want, err := numBytes(*e.Dtype, shape)
	if err != nil {
		return span{}, err
	}
	begin, end := *e.Offsets[0], *e.Offsets[1]
	if begin < 0 || end < begin {
		return span{}, fmt.Errorf("data_offsets [%d, %d] are not a range", begin, end)
	}
	if end-begin != int64(want) {
		return span{}, fmt.Errorf("data_offsets [%d, %d] hold %d bytes, %s%v wants %d",
			begin, end, end-begin, *e.Dtype, shape, want)
	}
	return span{name, &Tensor{Dtype: *e.Dtype, Shape: shape}, begin, end}, nil
}

// checkCover sorts spans by their place in the data and checks that they cover its size bytes without gap or overlap.
func checkCover(spans []span, size int64) error {
	slices.SortStableFunc(spans, func(a, b span) int {
		if a.begin != b.begin {
			return cmp.Compare(a.begin, b.begin)
		}
		return cmp.Compare(a.end, b.end)
	})
	var pos int64
	for _, s := range spans {
		switch {
		case s.end > size:
			return fmt.Errorf("tensor %q: data_offsets [%d, %d] in a file with %d bytes of data", s.name, s.begin, s.end, size)
		case s.begin < pos:
			return fmt.Errorf("tensor %q: data_offsets [%d, %d] overlap a tensor that ends at %d", s.name, s.begin, s.end, pos)
		case s.begin > pos:
			return fmt.Errorf("tensor %q: data_offsets [%d, %d] leave a gap after %d", s.name, s.begin, s.end, pos)
		}
		pos = s.end
	}
	if pos != size {
		return fmt.Errorf("%d bytes of data, the tensors end at %d", size, pos)
	}
	return nil
}

// readData allocates t.Data and fills it from r, which holds exactly its bytes, through buf.
func readData(r io.Reader, buf []byte, t *Tensor) error {
	n, err := numElements(t.Shape)
	if err != nil {
		return err
	}
	switch t.Dtype {
	case "F64":
		t.Data, err = readSlice[float64](r, buf, n, 8)
	case "F32":
		t.Data, err = readSlice[float32](r, buf, n, 4)
	case "I64":
		t.Data, err = readSlice[int64](r, buf, n, 8)
	case "I32":
		t.Data, err = readSlice[int32](r, buf, n, 4)
	}
	return err
}

func readSlice[T float64 | float32 | int64 | int32](r io.Reader, buf []byte, n, size int) ([]T, error) {
	out := make([]T, n)
	for rest := out; len(rest) > 0; {
		part := rest[:min(len(rest), len(buf)/size)]
		raw := buf[:len(part)*size]
		if _, err := io.ReadFull(r, raw); err != nil {
			return nil, err
		}
		if _, err := binary.Decode(raw, binary.LittleEndian, part); err != nil {
			return nil, err
		}
		rest = rest[len(part):]
	}
	return out, nil
}
