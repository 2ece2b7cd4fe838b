package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/internal/quote"
	"github.com/gorgonia-nsa/nsa/internal/value"
)

// Option is an option of Read.
type Option int

// AllowNaN makes Read accept NaN in a file, which is an error otherwise.
const AllowNaN Option = 1

// Read reads the file at path. A tensor without elements is an error. Errors name the path and, if one is at fault, the
// tensor.
func Read(path string, opts ...Option) (f File, err error) {
	err = withFile(path, func(r io.ReaderAt, size int64) (err error) {
		if f, err = decode(r, size); err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(f.Tensors)) {
			t := f.Tensors[name]
			switch {
			case t.Shape().TotalSize() == 0:
				return fmt.Errorf("tensor %q has no elements: its shape is %v", name, t.Shape())
			case !slices.Contains(opts, AllowNaN) && indexOf(t, math.IsNaN) >= 0:
				return fmt.Errorf("tensor %q has NaN in it", name)
			}
		}
		return nil
	})
	if err != nil {
		return File{}, err
	}
	return f, nil
}

// CheckSize returns an error unless the file at path has a valid header and as many bytes as it says. It reads only the
// header.
func CheckSize(path string) error {
	return withFile(path, func(r io.ReaderAt, size int64) error {
		_, _, _, err := readSpans(r, size)
		return err
	})
}

// withFile calls use with the file at path and its size. Errors name the path.
func withFile(path string, use func(r io.ReaderAt, size int64) error) error {
	from, err := files.Open(path)
	if err != nil {
		return fault.In("safetensors", path, quote.Error(err))
	}
	defer from.Close()
	info, err := from.Stat()
	if err == nil {
		err = use(from, info.Size())
	}
	return fault.In("safetensors", path, quote.Error(err))
}

// ErrNotFinite is in the error of CheckFinite.
var ErrNotFinite = errors.New("want finite numbers")

// CheckFinite returns an error that wraps ErrNotFinite and names the first element that is NaN or infinite, if there is
// one.
func (f File) CheckFinite() error {
	for _, name := range slices.Sorted(maps.Keys(f.Tensors)) {
		t := f.Tensors[name]
		if i := indexOf(t, value.NotFinite); i >= 0 {
			return fmt.Errorf("element %d of %s is %v: %w", i, name, t.Get(i), ErrNotFinite)
		}
	}
	return nil
}

// indexOf returns the index of the first number of t that is as asked, NaN or infinite; -1 if there is none.
func indexOf(t *tensor.Dense, is func(float64) bool) int {
	switch t.Dtype() {
	case tensor.Float32:
		if list := t.Float32s(); !allFinite(list) {
			return slices.IndexFunc(list, func(x float32) bool { return is(float64(x)) })
		}
	case tensor.Float64:
		if list := t.Float64s(); !allFinite(list) {
			return slices.IndexFunc(list, is)
		}
	}
	return -1
}

// allFinite is eight times as fast as a search that calls a function for each number.
func allFinite[T float32 | float64](list []T) bool {
	for _, x := range list {
		if x-x != 0 {
			return false
		}
	}
	return true
}

// Decode reads a file in memory. It accepts NaN and tensors without elements. The result does not share memory with
// data.
func Decode(data []byte) (File, error) {
	f, err := decode(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return File{}, fault.In("safetensors", "", quote.Error(err))
	}
	return f, nil
}

// span is a tensor of the header: what is to be read, and its range of bytes, counted from the end of the header.
type span struct {
	name       string
	dtype      dtype
	shape      []int
	begin, end int64
}

// decode reads a file of size bytes from r.
func decode(r io.ReaderAt, size int64) (f File, err error) {
	metadata, spans, start, err := readSpans(r, size)
	if err != nil {
		return f, err
	}
	need := size
	for _, s := range spans {
		if s.dtype.size == 2 {
			need += s.end - s.begin // as float32
		}
	}
	if err := memory.CheckTotal(int(need)); err != nil {
		return f, err
	}
	f = File{Metadata: metadata, Tensors: make(map[string]*tensor.Dense, len(spans))}
	for _, s := range spans {
		t, err := s.read(io.NewSectionReader(r, start+s.begin, s.end-s.begin))
		if err != nil {
			return f, fmt.Errorf("tensor %q: %w", s.name, err)
		}
		f.Tensors[s.name] = t
	}
	return f, nil
}

// readSpans returns what the header of a file of size bytes says, and where the tensors begin.
func readSpans(r io.ReaderAt, size int64) (metadata map[string]string, spans []span, start int64, err error) {
	head, err := readHeader(r, size)
	if err != nil {
		return nil, nil, 0, err
	}
	if metadata, spans, err = parseHeader(head); err != nil {
		return nil, nil, 0, err
	}
	start = 8 + int64(len(head))
	return metadata, spans, start, checkCover(spans, size-start)
}

// readHeader returns the JSON bytes of the header.
func readHeader(r io.ReaderAt, size int64) ([]byte, error) {
	if size < 8 {
		return nil, fmt.Errorf("truncated: %d bytes, want at least 8", size)
	}
	var n uint64
	if err := binary.Read(io.NewSectionReader(r, 0, 8), binary.LittleEndian, &n); err != nil {
		return nil, fmt.Errorf("header length: %w", err)
	}
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
	return head, nil
}

// parseHeader returns the metadata and the tensors of the header. It checks each tensor by itself: a known type, a
// valid shape, and a range that begins at or after 0 and has as many bytes as the shape. Package json refuses a name
// that appears twice and text that is not UTF-8.
func parseHeader(head []byte) (metadata map[string]string, spans []span, err error) {
	var header map[string]jsontext.Value
	if !bytes.HasPrefix(head, []byte("{")) {
		return nil, nil, fmt.Errorf("header: got %.20q, want an object", head)
	}
	if err := json.Unmarshal(head, &header); err != nil {
		return nil, nil, fmt.Errorf("header: %w", err)
	}
	if raw, ok := header[metadataKey]; ok {
		delete(header, metadataKey)
		var texts map[string]*string
		if raw.Kind() != '{' {
			return nil, nil, fmt.Errorf("metadata: got %.20q, want an object", raw)
		}
		if err := json.Unmarshal(raw, &texts); err != nil {
			return nil, nil, fmt.Errorf("metadata: %w", err)
		}
		metadata = make(map[string]string, len(texts))
		for k, v := range texts {
			if v == nil {
				return nil, nil, fmt.Errorf("metadata: %q is null, want a string", k)
			}
			metadata[k] = *v
		}
	}
	for _, name := range slices.Sorted(maps.Keys(header)) {
		s, err := parseEntry(name, header[name])
		if err != nil {
			return nil, nil, fmt.Errorf("tensor %q: %w", name, err)
		}
		spans = append(spans, s)
	}
	return metadata, spans, nil
}

// parseEntry reads the entry of a tensor in the header.
func parseEntry(name string, text jsontext.Value) (span, error) {
	s := span{name: name}
	var e entry
	if bytes.Contains(text, []byte("null")) { // package json would leave a zero for null
		return s, errors.New("null, want a value")
	}
	if err := json.Unmarshal(text, &e); err != nil {
		return s, err
	}
	var ok bool
	if s.dtype, ok = dtypeOf(func(d dtype) bool { return d.name == e.Dtype }); !ok {
		return s, fmt.Errorf("dtype %q not supported, want F64, F32, BF16, F16, I64 or I32", e.Dtype)
	}
	if e.Shape == nil {
		return s, errors.New("no shape")
	}
	s.shape = e.Shape
	n, err := count(s.shape, s.dtype.size)
	if err != nil {
		return s, err
	}
	if o := e.Offsets; len(o) != 2 || o[0] < 0 || o[1] < o[0] {
		return s, fmt.Errorf("data_offsets %d are not a range", o)
	}
	s.begin, s.end = e.Offsets[0], e.Offsets[1]
	if got, want := s.end-s.begin, int64(n*s.dtype.size); got != want {
		return s, fmt.Errorf("data_offsets [%d, %d] hold %d bytes, %s%v wants %d", s.begin, s.end, got, s.dtype.name,
			s.shape, want)
	}
	return s, nil
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
		}
		n *= d
	}
	return n / size, nil
}

// checkCover sorts spans by their place in the data and checks that they cover its size bytes without gap or overlap.
func checkCover(spans []span, size int64) error {
	slices.SortStableFunc(spans, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end))
	})
	var pos int64
	for _, s := range spans {
		switch {
		case s.end > size:
			return fmt.Errorf("tensor %q: data_offsets [%d, %d] in a file with %d bytes of data", s.name, s.begin,
				s.end, size)
		case s.begin < pos:
			return fmt.Errorf("tensor %q: data_offsets [%d, %d] overlap a tensor that ends at %d", s.name, s.begin,
				s.end, pos)
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

// read returns the tensor of s. r holds exactly its bytes.
func (s *span) read(r io.Reader) (*tensor.Dense, error) {
	t := tensor.New(tensor.Of(s.dtype.memory), tensor.WithShape(s.shape...))
	all, err := elements(t)
	if err != nil {
		return nil, err
	}
	data := reflect.ValueOf(all)
	n := int(s.end-s.begin) / s.dtype.size
	for i := 0; i < n; i += chunk {
		part := data.Slice(i, min(i+chunk, n)).Interface()
		if s.dtype.size == 2 {
			raw := make([]byte, 2*min(chunk, n-i))
			if _, err := io.ReadFull(r, raw); err != nil {
				return nil, err
			}
			s.dtype.float32s(part.([]float32), raw)
		} else if err := binary.Read(r, binary.LittleEndian, part); err != nil {
			return nil, err
		}
	}
	return t, nil
}
