package corpus

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

// pageCheck checks the pages of one column of a row group.
type pageCheck struct {
	in       *os.File
	codec    format.CompressionCodec
	column   parquetColumn
	buffer   []byte
	unpacked []byte
	words    []int64 // lengths of the strings of the dictionary
	text     int64   // bytes of the strings of the pages so far
}

// checkCompression returns an error for a compression that is not read. parquet-go loses what it unpacks of raw LZ4 where a page has more than
// a third of its unpacked size.
func checkCompression(c format.CompressionCodec) error {
	switch c {
	case format.Uncompressed, format.Snappy, format.Gzip, format.Brotli, format.Zstd:
		return nil
	}
	return fmt.Errorf("parquet: compression %v, want none, Snappy, gzip, Brotli or Zstandard: write the file with zstd or snappy", c)
}

// knowsEncoding reports whether an encoding may be one of a column that can be read. Old files list BIT_PACKED for
// levels that they do not have.
func knowsEncoding(e format.Encoding) bool {
	switch e {
	case format.Plain, plainDictionary, format.RLEDictionary, format.DeltaLengthByteArray, format.DeltaByteArray, format.RLE, format.BitPacked:
		return true
	}
	return false
}

// pagesBegin returns where the pages of a column begin in a file of the given size.
func pagesBegin(size int64, meta *format.ColumnMetaData) (at int64, err error) {
	at = meta.DataPageOffset
	if meta.DictionaryPageOffset != 0 {
		at = meta.DictionaryPageOffset
	}
	if at < 0 || meta.TotalCompressedSize < 0 || at > size || meta.TotalCompressedSize > size-at {
		return 0, fmt.Errorf("pages at byte %d to %d+%d, the file has %d", at, at, meta.TotalCompressedSize, size)
	}
	return at, nil
}

// checkPages checks the pages of a column of strings. It returns the bytes of its strings.
func checkPages(in *os.File, size int64, meta *format.ColumnMetaData, column parquetColumn) (text int64, err error) {
	defer recoverParquet(&err)
	c := &pageCheck{in: in, codec: meta.Codec, column: column}
	at, err := pagesBegin(size, meta)
	if err != nil {
		return 0, err
	}
	values := int64(0)
	for end := at + meta.TotalCompressedSize; at < end; {
		n, m, err := c.page(at, end)
		if err != nil {
			return 0, fmt.Errorf("page at byte %d: %w", at, err)
		}
		at += n
		values += m
	}
	if values != meta.NumValues {
		return 0, fmt.Errorf("pages have %d values, want %d", values, meta.NumValues)
	}
	return c.text, nil
}

// page is a page of a column.
type page struct {
	values     int64 // with nulls
	nulls      int64 // as the header says; -1: not in the header
	encoding   format.Encoding
	repeats    []byte // repetition levels; nil: they are in data
	levels     []byte // definition levels, which tell nulls from values; nil: they are in data
	data       []byte
	compressed bool
	size       int64 // of the unpacked data
}

// page checks the page at byte at and returns its length and its number of values, which is 0 for a dictionary.
func (c *pageCheck) page(at, end int64) (length, values int64, err error) {
	h, n, err := c.header(at, end)
	if err != nil {
		return 0, 0, err
	}
	size, want := int64(h.CompressedPageSize), int64(h.UncompressedPageSize)
	if size < 0 || size > end-at-n || want < 0 || max(size, want) > maxPage {
		return 0, 0, fmt.Errorf("%d bytes, unpacked %d, want at most %d and %d", size, want, min(end-at-n, maxPage), maxPage)
	}
	c.buffer = grow(c.buffer, int(size))
	if _, err := c.in.ReadAt(c.buffer, at+n); err != nil {
		return 0, 0, unexpected(err)
	}
	p, err := c.describe(h, c.buffer)
	if err != nil {
		return 0, 0, err
	}
	if p.compressed && len(p.data) > 0 {
		if p.data, err = c.unpack(p.data, int(p.size)); err != nil {
			return 0, 0, err
		}
	}
	if h.Type == format.DictionaryPage {
		c.words = c.words[:0]
		return n + size, 0, p.lengths(p.values, nil, func(n int64) { c.words = append(c.words, n) })
	}
	strings := p.values
	if c.column.repeats > 0 {
		if _, err = p.countLevels(&p.repeats, c.column.repeats); err != nil {
			return 0, 0, err
		}
	}
	if c.column.level > 0 {
		if strings, err = p.countLevels(&p.levels, c.column.level); err != nil {
			return 0, 0, err
		}
	}
	if p.nulls >= 0 && p.nulls != p.values-strings {
		return 0, 0, fmt.Errorf("%d nulls, want %d", p.nulls, p.values-strings)
	}
	return n + size, p.values, p.lengths(strings, c.words, func(n int64) { c.text += n })
}

// describe returns the page of a header and the bytes after it.
func (c *pageCheck) describe(h format.PageHeader, data []byte) (p page, err error) {
	p = page{data: data, nulls: -1, compressed: true, size: int64(h.UncompressedPageSize)}
	switch {
	case h.Type == format.DictionaryPage && h.DictionaryPageHeader.Valid:
		p.values, p.encoding = int64(h.DictionaryPageHeader.V.NumValues), h.DictionaryPageHeader.V.Encoding
		if p.encoding == plainDictionary {
			p.encoding = format.Plain
		}
	case h.Type == format.DataPage && h.DataPageHeader.Valid:
		v := h.DataPageHeader.V
		p.values, p.encoding = int64(v.NumValues), v.Encoding
		if c.column.level > 0 && v.DefinitionLevelEncoding != format.RLE || c.column.repeats > 0 && v.RepetitionLevelEncoding != format.RLE {
			return p, fmt.Errorf("levels in the encodings %v and %v, want RLE", v.DefinitionLevelEncoding, v.RepetitionLevelEncoding)
		}
	case h.Type == format.DataPageV2 && h.DataPageHeaderV2.Valid:
		v := h.DataPageHeaderV2.V
		p.values, p.nulls, p.encoding, p.compressed = int64(v.NumValues), int64(v.NumNulls), v.Encoding, !v.IsCompressed.Valid || v.IsCompressed.V
		r, n := int64(v.RepetitionLevelsByteLength), int64(v.DefinitionLevelsByteLength)
		if r < 0 || n < 0 || r+n > min(int64(len(data)), p.size) || r > 0 && c.column.repeats == 0 {
			return p, fmt.Errorf("levels of %d and %d bytes in %d", n, r, len(data))
		}
		p.repeats, p.levels, p.data, p.size = data[:r:r], data[r:r+n:r+n], data[r+n:], p.size-r-n
	default:
		return p, fmt.Errorf("of type %v, want a dictionary or data", h.Type)
	}
	if p.values < 0 || p.values > maxValues {
		return p, fmt.Errorf("%d values, want at most %d", p.values, maxValues)
	}
	return p, nil
}

// header reads the header of the page at byte at. n is the length of the header.
func (c *pageCheck) header(at, end int64) (h format.PageHeader, n int64, err error) {
	for size := int64(firstHeader); ; size *= 8 {
		c.buffer = grow(c.buffer, int(min(size, end-at)))
		if _, err := c.in.ReadAt(c.buffer, at); err != nil {
			return h, 0, unexpected(err)
		}
		n, err := checkStruct(c.buffer)
		if err != nil && size < end-at && size < maxHeader {
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
		return nil, checkCompression(c.codec)
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

// grow returns a slice of n bytes, in the memory of b if that is large enough.
func grow(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}
