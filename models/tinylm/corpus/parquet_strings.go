package corpus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/bits"

	"github.com/parquet-go/parquet-go/format"
)

// countLevels returns how many values have the largest level: of definition levels those that are not null. levels are
// taken from data if they are there.
func (p *page) countLevels(levels *[]byte, level int) (n int64, err error) {
	if *levels == nil {
		if len(p.data) < 4 || int64(binary.LittleEndian.Uint32(p.data)) > int64(len(p.data)-4) {
			return 0, errors.New("levels are longer than the page")
		}
		end := 4 + int(binary.LittleEndian.Uint32(p.data))
		*levels, p.data = p.data[4:end], p.data[end:]
	}
	left, width := p.values, bits.Len(uint(level))
	for r, err := range runs(*levels, width, p.values) {
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
		if _, err := deltas(data, n, length); err != nil {
			return err
		}
		got = n
	case format.DeltaByteArray: // lengths of the beginnings that are those of the strings before, lengths of the rest, and the rest
		text := int64(0)
		count := func(size int64) { text += size; length(size) }
		rest, err := deltas(data, n, count)
		if err == nil {
			_, err = deltas(rest, n, count)
		}
		if err == nil && text > maxPage {
			err = fmt.Errorf("strings of %d bytes, want at most %d", text, maxPage)
		}
		if err != nil {
			return err
		}
		got = n
	default:
		return fmt.Errorf("encoding %v, want PLAIN, a dictionary, DELTA_LENGTH_BYTE_ARRAY or DELTA_BYTE_ARRAY", p.encoding)
	}
	if got != n {
		return fmt.Errorf("%d strings, want %d", got, n)
	}
	return nil
}

// deltas calls length with the n lengths of a list in the encoding DELTA_BINARY_PACKED and returns the bytes behind the
// list. If the header says another number than n, it is an error: parquet-go would allocate them all.
func deltas(data []byte, n int64, length func(int64)) (rest []byte, err error) {
	var header [3]int64 // values of a block, parts of a block, values
	for i := range header {
		x, size := binary.Uvarint(data)
		if size <= 0 || x > 1<<32 {
			return nil, errors.New("lengths of strings have no header")
		}
		header[i], data = int64(x), data[size:]
	}
	block, parts, got := header[0], header[1], header[2]
	last, size := binary.Varint(data)
	if size <= 0 || parts < 1 || block > maxDeltaBlock || block%(8*parts) != 0 {
		return nil, fmt.Errorf("lengths of strings in blocks of %d, each in %d parts, want parts of a multiple of 8", block, parts)
	}
	if got != n {
		return nil, fmt.Errorf("%d strings, want %d", got, n)
	}
	data = data[size:]
	if n > 0 {
		length(last)
	}
	for left := n - 1; left > 0; {
		least, size := binary.Varint(data)
		if size <= 0 || int64(len(data)-size) < parts {
			return nil, errors.New("lengths of strings are longer than the page")
		}
		widths := data[size : int64(size)+parts]
		data = data[int64(size)+parts:]
		for _, width := range widths {
			if left <= 0 {
				break
			}
			bytes := block / parts * int64(width) / 8
			if width > 32 || bytes > int64(len(data)) {
				return nil, errors.New("lengths of strings are longer than the page")
			}
			r := numberRun{bits: data[:bytes:bytes]}
			for i := range int(min(left, block/parts)) {
				last = int64(int32(last + least + int64(r.at(i, int(width))))) // numbers of 32 bits, which wrap around
				length(last)
			}
			left -= block / parts
			data = data[bytes:]
		}
	}
	return data, nil
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
