package gguf

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/gorgonia-nsa/nsa/internal/memory"
)

// maxHeader is the largest header in bytes. 256,000 tokens with their scores and merges have about 10 MiB.
const maxHeader = 100 << 20

// header reads a header from its begin. After an error its methods return zeros.
type header struct {
	r        *bufio.Reader
	pos, end int64 // end: of the file, or of the largest header
	err      error
}

func newHeader(r io.ReaderAt, size int64) *header {
	end := min(size, maxHeader)
	return &header{r: bufio.NewReader(io.NewSectionReader(r, 0, end)), end: end}
}

// fits reports whether n elements of the given size can follow. If not, it sets err.
func (h *header) fits(n, size uint64) bool {
	if left := uint64(h.end - h.pos); h.err == nil && n > left/size {
		h.err = fmt.Errorf("truncated: %d times %d bytes from byte %d on, in a file of %d", n, size, h.pos, h.end)
		if h.end == maxHeader {
			h.err = fmt.Errorf("header of more than %s", memory.Size(maxHeader))
		}
	}
	return h.err == nil
}

// fill reads all of b, which fits has allowed.
func (h *header) fill(b []byte) {
	n, err := io.ReadFull(h.r, b)
	h.pos, h.err = h.pos+int64(n), err
}

// bytes returns the next n bytes.
func (h *header) bytes(n uint64) []byte {
	if !h.fits(n, 1) {
		return nil
	}
	b := make([]byte, n)
	h.fill(b)
	return b
}

// uint returns a number of size bytes.
func (h *header) uint(size int) uint64 {
	if !h.fits(1, uint64(size)) {
		return 0
	}
	b, err := h.r.Peek(size)
	if err != nil {
		h.err = err
		return 0
	}
	x := number(b)
	h.pos += int64(size)
	_, h.err = h.r.Discard(size)
	return x
}

// number returns the little-endian number in b.
func number(b []byte) (x uint64) {
	for i, v := range b {
		x |= uint64(v) << (8 * i)
	}
	return x
}

// appendString appends the next string to b, behind the 8 bytes of its length.
func (h *header) appendString(b []byte) []byte {
	n := h.uint(8)
	if !h.fits(n, 1) {
		return b
	}
	b = slices.Grow(binary.LittleEndian.AppendUint64(b, n), int(n))
	b = b[:len(b)+int(n)]
	h.fill(b[len(b)-int(n):])
	return b
}

// text returns the next string.
func (h *header) text() string {
	if b := h.appendString(nil); h.err == nil {
		return string(b[8:])
	}
	return ""
}

// value returns the next value of the metadata.
func (h *header) value() value {
	v := value{kind: kind(h.uint(4)), count: 1}
	if v.kind == kindArray {
		v.array, v.kind, v.count = true, kind(h.uint(4)), h.uint(8)
	}
	switch size := v.kind.size(); {
	case h.err != nil:
	case v.kind == kindString:
		if h.fits(v.count, 8) {
			for range v.count {
				v.raw = h.appendString(v.raw)
				if h.err != nil {
					break
				}
			}
		}
	case size > 0:
		if h.fits(v.count, size) {
			v.raw = h.bytes(v.count * size)
		}
	case v.kind == kindArray:
		h.err = errors.New("an array of arrays, which is not supported")
	default:
		h.err = fmt.Errorf("unknown type %d", v.kind)
	}
	return v
}

// tensor returns the next tensor but its name.
func (h *header) tensor() (tensor, error) {
	dims := h.uint(4)
	if dims > maxDims {
		return tensor{}, fmt.Errorf("%d dimensions, want at most %d", dims, maxDims)
	}
	t, row := tensor{shape: make([]int, dims), elements: 1}, 1
	for i := range t.shape {
		d := h.uint(8)
		if h.err == nil && (d == 0 || d > uint64(math.MaxInt/4/t.elements)) { // 4: bytes of a float32
			return t, fmt.Errorf("dimension %d is %d, want at least 1 and a size that does not overflow", i, d)
		}
		t.shape[i] = int(d)
		t.elements *= int(d)
	}
	if dims > 0 {
		row = t.shape[0]
	}
	slices.Reverse(t.shape)
	code := h.uint(4)
	t.offset = h.uint(8)
	if h.err != nil {
		return t, h.err
	}
	t.format = formats[code]
	switch {
	case t.format.decode == nil:
		name := fmt.Sprint(code)
		if names := strings.Fields(typeNames); code < uint64(len(names)) {
			name = names[code]
		}
		return t, fmt.Errorf("type %s is not supported, want F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q5_K or Q6_K", name)
	case row%t.format.elements != 0:
		return t, fmt.Errorf("rows of %d elements, want a multiple of %d for %s", row, t.format.elements, t.format.name)
	}
	return t, nil
}
