package corpus

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/bits"
	"os"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
	"github.com/pierrec/lz4/v4"
)

// pageCheck checks the pages of one column of a row group.
type pageCheck struct {
	in       *os.File
	codec    format.CompressionCodec
	level    int // largest definition level
	buffer   []byte
	unpacked []byte
}

// checkPages checks the pages of a column of strings with the given largest definition level.
func checkPages(in *os.File, size int64, meta *format.ColumnMetaData, level int) (err error) {
	defer recoverParquet(&err)
	c := &pageCheck{in: in, codec: meta.Codec, level: level}
	at := meta.DataPageOffset
	if meta.DictionaryPageOffset != 0 {
		at = meta.DictionaryPageOffset
	}
	if at < 0 || meta.TotalCompressedSize < 0 || at > size || meta.TotalCompressedSize > size-at {
		return fmt.Errorf("pages at byte %d to %d+%d, the file has %d", at, at, meta.TotalCompressedSize, size)
	}
	values := int64(0)
	for end := at + meta.TotalCompressedSize; at < end; {
		n, m, err := c.page(at, end)
		if err != nil {
			return fmt.Errorf("page at byte %d: %w", at, err)
		}
		at += n
		values += m
	}
	if values != meta.NumValues {
		return fmt.Errorf("pages have %d values, want %d", values, meta.NumValues)
	}
	return nil
}

// page is a page of a column.
type page struct {
	values   int64 // with nulls
	nulls    int64 // as the header says; -1: not in the header
	encoding format.Encoding
	levels   []byte // definition levels, which tell nulls from values; nil: they are in data
	data     []byte
	packed   bool
	size     int64 // of the unpacked data
}

// page checks the page at byte at and returns its length and its number of values, which is 0 for a dictionary.
func (c *pageCheck) page(at, end int64) (length, values int64, err error) {
	h, n, err := c.header(at, end)
	if err != nil {
		return 0, 0, err
	}
	size, want := int64(h.CompressedPageSize), int64(h.UncompressedPageSize)
	if size < 0 || size > end-at-n || want < 0 || max(size, want) > mostPage {
		return 0, 0, fmt.Errorf("%d bytes, unpacked %d, want at most %d and %d", size, want, min(end-at-n, mostPage), mostPage)
	}
	c.buffer = grow(c.buffer, int(size))
	if _, err := c.in.ReadAt(c.buffer, at+n); err != nil {
		return 0, 0, unexpected(err)
	}
	p, err := c.describe(h, c.buffer)
	if err != nil {
		return 0, 0, err
	}
	if p.packed && len(p.data) > 0 {
		if p.data, err = c.unpack(p.data, int(p.size)); err != nil {
			return 0, 0, err
		}
	}
	if h.Type == format.DictionaryPage {
		return n + size, 0, p.checkStrings(p.values)
	}
	strings := p.values
	if c.level > 0 {
		if strings, err = p.countStrings(c.level); err != nil {
			return 0, 0, err
		}
	}
	if p.nulls >= 0 && p.nulls != p.values-strings {
		return 0, 0, fmt.Errorf("%d nulls, want %d", p.nulls, p.values-strings)
	}
	return n + size, p.values, p.checkStrings(strings)
}

// describe returns the page of a header and the bytes after it.
func (c *pageCheck) describe(h format.PageHeader, data []byte) (p page, err error) {
	p = page{data: data, nulls: -1, packed: true, size: int64(h.UncompressedPageSize)}
	switch {
	case h.Type == format.DictionaryPage && h.DictionaryPageHeader.Valid:
		p.values, p.encoding = int64(h.DictionaryPageHeader.V.NumValues), h.DictionaryPageHeader.V.Encoding
		if p.encoding == plainDictionary {
			p.encoding = format.Plain
		}
	case h.Type == format.DataPage && h.DataPageHeader.Valid:
		v := h.DataPageHeader.V
		p.values, p.encoding = int64(v.NumValues), v.Encoding
		if c.level > 0 && v.DefinitionLevelEncoding != format.RLE {
			return p, fmt.Errorf("levels in the encoding %v, want RLE", v.DefinitionLevelEncoding)
		}
	case h.Type == format.DataPageV2 && h.DataPageHeaderV2.Valid:
		v := h.DataPageHeaderV2.V
		p.values, p.nulls, p.encoding, p.packed = int64(v.NumValues), int64(v.NumNulls), v.Encoding, !v.IsCompressed.Valid || v.IsCompressed.V
		n := int64(v.DefinitionLevelsByteLength)
		if n < 0 || n > min(int64(len(data)), p.size) || v.RepetitionLevelsByteLength != 0 {
			return p, fmt.Errorf("levels of %d and %d bytes in %d", n, v.RepetitionLevelsByteLength, len(data))
		}
		p.levels, p.data, p.size = data[:n:n], data[n:], p.size-n
	default:
		return p, fmt.Errorf("of type %v, want a dictionary or data", h.Type)
	}
	if p.values < 0 || p.values > mostValues {
		return p, fmt.Errorf("%d values, want at most %d", p.values, mostValues)
	}
	return p, nil
}

// countStrings returns the number of values with the largest level: those that are not null.
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
		switch {
		case r.packed == nil && r.value == uint64(level):
			n += r.n
		case r.packed != nil:
			for i := range int(r.n) {
				value := 0
				for j := range width {
					at := i*width + j
					value |= int(r.packed[at/8]>>(at%8)&1) << j
				}
				if value == level {
					n++
				}
			}
		}
	}
	if left > 0 {
		return 0, fmt.Errorf("levels of %d values, want %d", p.values-left, p.values)
	}
	return n, nil
}

// header reads the header of the page at byte at. n is the length of the header.
func (c *pageCheck) header(at, end int64) (h format.PageHeader, n int64, err error) {
	for size := int64(firstHeader); ; size *= 8 {
		c.buffer = grow(c.buffer, int(min(size, end-at)))
		if _, err := c.in.ReadAt(c.buffer, at); err != nil {
			return h, 0, unexpected(err)
		}
		n, err := checkStruct(c.buffer)
		if err != nil && size < end-at && size < mostHeader {
			continue
		}
		if err == nil {
			err = thrift.NewDecoder(new(thrift.CompactProtocol).NewReaderFromBytes(bytes.Clone(c.buffer[:n]))).Decode(&h)
		}
		if err != nil {
			err = fmt.Errorf("header: %w", err)
		}
		return h, int64(n), err
	}
}

// unpack decompresses a page. Another length than want is an error.
func (c *pageCheck) unpack(data []byte, want int) ([]byte, error) {
	var r io.Reader
	var err error
	n := -1
	switch c.codec {
	case format.Uncompressed:
		return data, nil
	case format.Snappy:
		if n, err = snappy.DecodedLen(data); err == nil && n == want {
			c.unpacked = grow(c.unpacked, want)
			c.unpacked, err = snappy.Decode(c.unpacked, data)
		}
	case format.Lz4Raw:
		c.unpacked = grow(c.unpacked, want)
		n, err = lz4.UncompressBlock(data, c.unpacked)
	case format.Gzip:
		r, err = gzip.NewReader(bytes.NewReader(data))
	case format.Brotli:
		r = brotli.NewReader(bytes.NewReader(data))
	case format.Zstd:
		z, openErr := zstd.NewReader(bytes.NewReader(data), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(windowBytes))
		if openErr == nil {
			defer z.Close()
		}
		r, err = z, openErr
	default:
		return nil, fmt.Errorf("compression %v, want none, Snappy, gzip, Brotli, Zstandard or raw LZ4", c.codec)
	}
	if err == nil && r != nil {
		if c.unpacked, err = readUpTo(r, c.unpacked[:0], want+1); err == nil {
			n = len(c.unpacked)
		}
	}
	if err == nil && n != want {
		err = fmt.Errorf("%d bytes, want %d", n, want)
		if r != nil && n > want {
			err = fmt.Errorf("more than the %d bytes that the header says", want)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("unpacked with %v: %w", c.codec, unexpected(err))
	}
	return c.unpacked, nil
}

// checkStrings checks that the page has n strings, or indexes of strings.
func (p *page) checkStrings(n int64) error {
	data, got := p.data, int64(0)
	switch p.encoding {
	case format.Plain:
		for ; len(data) > 0; got++ {
			if len(data) < 4 || int64(binary.LittleEndian.Uint32(data)) > int64(len(data)-4) {
				return fmt.Errorf("string %d is longer than the page", got)
			}
			data = data[4+binary.LittleEndian.Uint32(data):]
		}
	case plainDictionary, format.RLEDictionary:
		if len(data) == 0 {
			break
		}
		if data[0] > 32 {
			return fmt.Errorf("indexes of %d bits, want at most 32", data[0])
		}
		for r, err := range runs(data[1:], int(data[0]), n) {
			if err != nil {
				return err
			}
			got += r.n
		}
		got = min(got, n) // the last run may be padded
	case format.DeltaLengthByteArray:
		for _, most := range []uint64{1 << 16, 1 << 16, 1 << 32} { // values of a block, parts of it, values
			x, size := binary.Uvarint(data)
			if size <= 0 || x > most {
				return errors.New("lengths of strings have no header")
			}
			data, got = data[size:], int64(x)
		}
	default:
		return fmt.Errorf("encoding %v, want PLAIN, a dictionary or DELTA_LENGTH_BYTE_ARRAY", p.encoding)
	}
	if got != n {
		return fmt.Errorf("%d strings, want %d", got, n)
	}
	return nil
}

// numberRun is n numbers of a run-length encoding: those in packed or, if that is nil, n times value.
type numberRun struct {
	n      int64
	packed []byte
	value  uint64
}

// runs yields the runs of numbers of width bits. Many more numbers than wanted are an error, because the library allocates memory for all.
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
				r.packed = data[:size:size]
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

// grow returns a slice of n bytes, in the memory of b if that is large enough.
func grow(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}
