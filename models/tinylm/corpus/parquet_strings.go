package corpus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"github.com/parquet-go/parquet-go/format"
)

// errEncoding is the error of an encoding that is not read.
func errEncoding(e format.Encoding) error {
	return fmt.Errorf("encoding %v, want PLAIN, a dictionary, DELTA_LENGTH_BYTE_ARRAY or DELTA_BYTE_ARRAY", e)
}

// plainDictionary is PLAIN_DICTIONARY, which format 1.0 of Parquet has for dictionaries and for the pages that refer to
// them.
const plainDictionary format.Encoding = 2

// knowsEncoding reports whether an encoding may be one of a column that can be read. Old files list BIT_PACKED for
// levels that they do not have.
func knowsEncoding(e format.Encoding) bool {
	switch e {
	case format.Plain, plainDictionary, format.RLEDictionary, format.DeltaLengthByteArray, format.DeltaByteArray,
		format.RLE, format.BitPacked:
		return true
	}
	return false
}

// strings yields the n strings of a page, each valid until the next.
func (r *pageReader) strings(p page, n int) iter.Seq2[[]byte, error] {
	return stream(func(yield func([]byte) bool) (err error) {
		data := p.data
		switch p.encoding {
		case format.Plain:
			for range n {
				var text []byte
				if text, data, err = cutString(data); err != nil || !yield(text) {
					return err
				}
			}
		case plainDictionary, format.RLEDictionary:
			if n == 0 {
				return nil
			}
			if len(data) == 0 || data[0] > 32 {
				return fmt.Errorf("indexes %.1x, want at most 32 bits each", data)
			}
			for index, err := range numbers(data[1:], int(data[0]), n) {
				if err == nil && int64(index) >= int64(len(r.dictionary.at)) {
					err = fmt.Errorf("index %d in a dictionary of %d strings", index, len(r.dictionary.at))
				}
				if err != nil {
					return err
				}
				text, _, err := cutString(r.dictionary.data[r.dictionary.at[index]:])
				if err != nil || !yield(text) {
					return err
				}
			}
		case format.DeltaLengthByteArray, format.DeltaByteArray: // lengths, then the strings
			r.more = append(r.more[:0], make([]int32, n)...) // bytes that each string has of the one before
			if p.encoding == format.DeltaByteArray {
				if r.more, data, err = deltas(r.more, data, n); err != nil {
					return err
				}
			}
			if r.lengths, data, err = deltas(r.lengths, data, n); err != nil {
				return err
			}
			var text []byte
			for i, length := range r.lengths {
				if same := int(r.more[i]); same < 0 || same > len(text) || length < 0 || int(length) > len(data) {
					return fmt.Errorf("string %d has %d bytes of the one before, which has %d, and %d of %d",
						i, same, len(text), length, len(data))
				}
				if text, data = append(text[:r.more[i]], data[:length]...), data[length:]; !yield(text) {
					return nil
				}
			}
		default:
			return errEncoding(p.encoding)
		}
		return nil
	})
}

// deltas reads n lengths in the encoding DELTA_BINARY_PACKED, in the memory of to, and returns the bytes behind them.
func deltas(to []int32, data []byte, n int) (lengths []int32, rest []byte, err error) {
	var header [3]int // values of a block, parts of a block, values
	for i := range header {
		x, size := binary.Uvarint(data)
		if size <= 0 || x > 1<<32 {
			return nil, nil, errors.New("lengths of strings have no header")
		}
		header[i], data = int(x), data[size:]
	}
	block, parts := header[0], header[1]
	first, size := binary.Varint(data)
	if size <= 0 || parts < 1 || block > maxDeltaBlock || block%(8*parts) != 0 {
		return nil, nil, fmt.Errorf("lengths of strings in blocks of %d, each in %d parts, want parts of a multiple of 8",
			block, parts)
	}
	if header[2] != n {
		return nil, nil, fmt.Errorf("%d strings, want %d", header[2], n)
	}
	last := int32(first)
	if data, lengths = data[size:], to[:0]; n > 0 {
		lengths = append(lengths, last)
	}
	for len(lengths) < n {
		least, size := binary.Varint(data)
		if size <= 0 || len(data)-size < parts {
			return nil, nil, errors.New("lengths of strings are longer than the page")
		}
		widths := data[size : size+parts]
		data = data[size+parts:]
		for _, width := range widths {
			if len(lengths) == n {
				break
			}
			bytes := block / parts * int(width) / 8
			if width > 32 || bytes > len(data) {
				return nil, nil, errors.New("lengths of strings are longer than the page")
			}
			for i := range min(n-len(lengths), block/parts) {
				last += int32(least) + int32(bitsAt(data[:bytes], i, int(width))) // of 32 bits, which wrap around
				lengths = append(lengths, last)
			}
			data = data[bytes:]
		}
	}
	return lengths, data, nil
}

// bitsAt returns number i of numbers of width bits, at most 32.
func bitsAt(data []byte, i, width int) uint32 {
	var word [8]byte
	copy(word[:], data[min(len(data), i*width/8):])
	return uint32(binary.LittleEndian.Uint64(word[:]) >> (i * width % 8) & (1<<width - 1))
}

// numbers yields n numbers of width bits, at most 32, in a run-length encoding.
func numbers(data []byte, width, n int) iter.Seq2[uint32, error] {
	return stream(func(yield func(uint32) bool) error {
		for n > 0 {
			x, skip := binary.Uvarint(data)
			if skip <= 0 || x > 1<<33 {
				return fmt.Errorf("a run of numbers without a length, want %d more numbers", n)
			}
			data = data[skip:]
			count, size := int(x>>1), (width+7)/8
			packed := x&1 == 1
			if packed {
				count, size = 8*count, count*width
			}
			if size > len(data) {
				return fmt.Errorf("%d numbers in %d bytes, want %d", count, len(data), n)
			}
			for i := range min(count, n) {
				if !packed {
					i = 0
				}
				if !yield(bitsAt(data[:size], i, width)) {
					return nil
				}
			}
			n, data = n-min(count, n), data[size:]
		}
		return nil
	})
}
