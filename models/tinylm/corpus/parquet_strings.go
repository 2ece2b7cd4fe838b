package corpus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/bits"

	"github.com/parquet-go/parquet-go/encoding/delta"
	"github.com/parquet-go/parquet-go/format"
)

// countStrings returns how many values have the largest level, which are those that are not null.
func (p *page) countStrings(level int) (n int64, err error) {
	if p.levels == nil {
		if len(p.data) < 4 || int64(binary.LittleEndian.Uint32(p.data)) > int64(len(p.data)-4) {
			return 0, errors.New("levels are longer than the page")
		}
		end := 4 + int(binary.LittleEndian.Uint32(p.data))
		p.levels, p.data = p.data[4:end], p.data[end:]
	}
	left, width := p.values, bits.Len(uint(level))
	for r, err := range runs(p.levels, width, p.values) {
		if err != nil {
			return 0, err
		}
		r.n = min(r.n, left) // the last run may be padded
		left -= r.n
		for i := range int(r.n) {
			if r.at(i, width) == uint64(level) {
				n++
			}
		}
	}
	if left > 0 {
		return 0, fmt.Errorf("levels of %d values, want %d", p.values-left, p.values)
	}
	return n, nil
}

// lengths calls length with the byte length of each of the page's n strings. With a dictionary a string is an index into words, the lengths
// of its strings.
func (p *page) lengths(n int64, words []int64, length func(int64)) error {
	data, got := p.data, int64(0)
	switch p.encoding {
	case format.Plain:
		for ; len(data) > 0; got++ {
			if len(data) < 4 || int64(binary.LittleEndian.Uint32(data)) > int64(len(data)-4) {
				return fmt.Errorf("string %d is longer than the page", got)
			}
			size := int64(binary.LittleEndian.Uint32(data))
			length(size)
			data = data[4+size:]
		}
	case plainDictionary, format.RLEDictionary:
		if len(data) == 0 {
			break
		}
		width := int(data[0])
		if width > 32 {
			return fmt.Errorf("indexes of %d bits, want at most 32", width)
		}
		for r, err := range runs(data[1:], width, n) {
			if err != nil {
				return err
			}
			r.n = min(r.n, n-got) // the last run may be padded
			got += r.n
			for i := range int(r.n) {
				index := r.at(i, width)
				if index >= uint64(len(words)) {
					return fmt.Errorf("index %d in a dictionary of %d strings", index, len(words))
				}
				length(words[index])
			}
		}
	case format.DeltaLengthByteArray:
		var err error
		if got, err = deltaLengths(data, n, length); err != nil {
			return err
		}
	default:
		return fmt.Errorf("encoding %v, want PLAIN, a dictionary or DELTA_LENGTH_BYTE_ARRAY", p.encoding)
	}
	if got != n {
		return fmt.Errorf("%d strings, want %d", got, n)
	}
	return nil
}

// deltaLengths calls length with the lengths of DELTA_LENGTH_BYTE_ARRAY and returns how many the header says there are. If these are not n,
// it calls nothing: parquet-go would allocate them all.
func deltaLengths(data []byte, n int64, length func(int64)) (got int64, err error) {
	header := data
	for _, most := range []uint64{1 << 16, 1 << 16, 1 << 32} { // values of a block, parts of it, values
		x, size := binary.Uvarint(header)
		if size <= 0 || x > most {
			return 0, errors.New("lengths of strings have no header")
		}
		header, got = header[size:], int64(x)
	}
	if got != n {
		return got, nil
	}
	all, err := new(delta.BinaryPackedEncoding).DecodeInt32(nil, data)
	if err != nil {
		return 0, err
	}
	for _, size := range all {
		length(int64(size))
	}
	return got, nil
}

// numberRun is n numbers of a run-length encoding: those in bits, or n times the same value.
type numberRun struct {
	n     int64
	bits  []byte
	value uint64
}

// at returns number i of a run of width-bit numbers.
func (r numberRun) at(i, width int) (value uint64) {
	if r.bits == nil {
		return r.value
	}
	for at := i * width; at < (i+1)*width; at++ {
		value |= uint64(r.bits[at/8]>>(at%8)&1) << (at - i*width)
	}
	return value
}

// runs yields the runs of width-bit numbers in data. More than about twice want numbers are an error: parquet-go would allocate them all.
func runs(data []byte, width int, want int64) iter.Seq2[numberRun, error] {
	return func(yield func(numberRun, error) bool) {
		for total := int64(0); len(data) > 0; {
			x, n := binary.Uvarint(data)
			if n <= 0 || x > 1<<33 {
				yield(numberRun{}, errors.New("run of numbers without a length"))
				return
			}
			data = data[n:]
			r, size := numberRun{n: int64(x >> 1)}, (width+7)/8
			if x&1 == 1 {
				r.n, size = 8*r.n, int(x>>1)*width
			}
			total += r.n
			if total > 2*want+4096 || size > len(data) {
				yield(r, fmt.Errorf("runs of %d numbers in %d bytes, want %d", total, len(data), want))
				return
			}
			if x&1 == 1 {
				r.bits = data[:size:size]
			} else {
				for i, b := range data[:size] {
					r.value |= uint64(b) << (8 * i)
				}
			}
			data = data[size:]
			if !yield(r, nil) {
				return
			}
		}
	}
}
