package corpus

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
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

// page checks the page at a place and returns its length and its number of values, which is 0 for a dictionary.
func (c *pageCheck) page(at, end int64) (length, values int64, err error) {
	h, n, err := c.header(at, end)
	if err != nil {
		return 0, 0, err
	}
	packed, want := int64(h.CompressedPageSize), int64(h.UncompressedPageSize)
	if packed < 0 || packed > end-at-n || want < 0 || max(packed, want) > mostPage {
		return 0, 0, fmt.Errorf("%d bytes, unpacked %d, want at most %d and %d", packed, want, min(end-at-n, mostPage), mostPage)
	}
	c.buffer = grow(c.buffer, int(packed))
	if _, err := c.in.ReadAt(c.buffer, at+n); err != nil {
		return 0, 0, unexpected(err)
	}
	data, levels, encoding, isPacked := c.buffer, -1, format.Plain, true
	switch {
	case h.Type == format.DictionaryPage && h.DictionaryPageHeader.Valid:
		values, encoding = int64(h.DictionaryPageHeader.V.NumValues), h.DictionaryPageHeader.V.Encoding
		if encoding == plainDictionary {
			encoding = format.Plain
		}
	case h.Type == format.DataPage && h.DataPageHeader.Valid:
		values, encoding = int64(h.DataPageHeader.V.NumValues), h.DataPageHeader.V.Encoding
		if c.level > 0 {
			levels = 0
		}
	case h.Type == format.DataPageV2 && h.DataPageHeaderV2.Valid:
		v := h.DataPageHeaderV2.V
		values, encoding, isPacked = int64(v.NumValues), v.Encoding, !v.IsCompressed.Valid || v.IsCompressed.V
		skip := int64(v.DefinitionLevelsByteLength) + int64(v.RepetitionLevelsByteLength)
		if v.DefinitionLevelsByteLength < 0 || v.RepetitionLevelsByteLength != 0 || skip > packed || skip > want {
			return 0, 0, fmt.Errorf("levels of %d and %d bytes in %d", v.DefinitionLevelsByteLength, v.RepetitionLevelsByteLength, packed)
		}
		if err := checkRuns(data[:skip], bits.Len(uint(c.level)), values); err != nil {
			return 0, 0, err
		}
		data, want = data[skip:], want-skip
	default:
		return 0, 0, fmt.Errorf("of type %v, want a dictionary or data", h.Type)
	}
	if values < 0 || values > mostValues {
		return 0, 0, fmt.Errorf("%d values, want at most %d", values, mostValues)
	}
	if isPacked && len(data) > 0 {
		if data, err = c.unpack(data, int(want)); err != nil {
			return 0, 0, err
		}
	}
	if levels == 0 {
		if len(data) < 4 || int64(binary.LittleEndian.Uint32(data)) > int64(len(data)-4) {
			return 0, 0, fmt.Errorf("levels are longer than the page")
		}
		levels = 4 + int(binary.LittleEndian.Uint32(data))
		if err := checkRuns(data[4:levels], bits.Len(uint(c.level)), values); err != nil {
			return 0, 0, err
		}
		data = data[levels:]
	}
	if err := checkValues(data, encoding, values); err != nil {
		return 0, 0, err
	}
	if h.Type == format.DictionaryPage {
		values = 0
	}
	return n + packed, values, nil
}

// header reads the header of the page at a place, and returns its length.
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

// unpack decompresses a page that has to become the given number of bytes.
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

// checkValues checks that the given number of strings can be in data.
func checkValues(data []byte, encoding format.Encoding, values int64) error {
	switch encoding {
	case format.Plain:
		return nil // each has its length in the page
	case plainDictionary, format.RLEDictionary:
		if len(data) == 0 {
			return nil
		}
		if data[0] > 32 {
			return fmt.Errorf("indexes of %d bits", data[0])
		}
		return checkRuns(data[1:], int(data[0]), values)
	case format.DeltaLengthByteArray:
		for _, most := range []uint64{1 << 16, 1 << 16, uint64(values)} { // values of a block, blocks of it, values
			x, n := binary.Uvarint(data)
			if n <= 0 || x > most {
				return errors.New("lengths of strings do not fit the page")
			}
			data = data[n:]
		}
		return nil
	}
	return fmt.Errorf("encoding %v, want PLAIN, a dictionary or DELTA_LENGTH_BYTE_ARRAY", encoding)
}

// checkRuns checks that a run-length encoding has not many more numbers of so many bits than wanted.
func checkRuns(data []byte, width int, want int64) error {
	total := uint64(0)
	for len(data) > 0 {
		x, n := binary.Uvarint(data)
		if n <= 0 || x > 1<<33 {
			return errors.New("run of numbers without a length")
		}
		data = data[n:]
		size := uint64(width+7) / 8
		if x&1 == 1 {
			size = (x >> 1) * uint64(width)
			total += x >> 1 * 8
		} else {
			total += x >> 1
		}
		if total > uint64(2*want+4096) { // the last group may be padded
			return fmt.Errorf("runs of %d numbers or more, want %d", total, want)
		}
		data = data[min(size, uint64(len(data))):]
	}
	return nil
}

// grow returns a slice of n bytes, which is b if it is large enough.
func grow(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}
