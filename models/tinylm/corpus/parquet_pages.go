package corpus

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"math/bits"

	"github.com/klauspost/compress/snappy"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

// parquet-go allocates as much memory as the pages of a file say, or as they expand to. So it reads only the footer and
// the headers of pages, after checkStruct; the pages are read here.
const (
	maxHeader = 16 << 20  // bytes of a page's header, which may have statistics
	maxPage   = 256 << 20 // bytes of a page
	maxValues = 16 << 20  // of a page

	maxDeltaBlock = 64 << 10 // values, as for parquet-go
	firstHeader   = 4 << 10  // bytes to read of a page for its header
)

// packings returns the compressions that are read, with the names that unpacker has for them. LZ4 and LZO are missing.
func packings() map[format.CompressionCodec]string {
	return map[format.CompressionCodec]string{
		format.Uncompressed: "", format.Snappy: ".snappy", format.Gzip: ".gz", format.Brotli: ".br",
		format.Zstd: ".zst",
	}
}

// textValue is a value of a column of strings.
type textValue struct {
	text   []byte
	null   bool
	level  byte // definition level
	repeat byte // repetition level; 0: the first value of a row
}

// pageReader reads the pages of one column of a row group.
type pageReader struct {
	in               io.ReaderAt
	packing          string
	column           parquetColumn
	buffer, unpacked []byte
	levels, repeats  []byte
	lengths, more    []int32
	dictionary       dictionary
}

// dictionary is strings in the encoding PLAIN.
type dictionary struct {
	data []byte
	at   []uint32 // where each string begins
}

// values yields the values of a column in a row group, each valid until the next.
func (p *parquetFile) values(group int, c parquetColumn) iter.Seq2[textValue, error] {
	return stream(func(yield func(textValue) bool) error {
		meta := p.meta(group, c)
		r := &pageReader{in: p.in, packing: packings()[meta.Codec], column: c}
		at, err := pagesBegin(p.size, meta)
		if err != nil {
			return err
		}
		n, text := int64(0), int64(0)
		for end := at + meta.TotalCompressedSize; at < end; {
			page, length, err := r.page(at, end)
			if err != nil {
				return fmt.Errorf("page at byte %d: %w", at, err)
			}
			for v, err := range r.values(page) {
				n, text = n+1, text+int64(len(v.text))
				if text > freeExpansion && text/maxExpansion > meta.TotalCompressedSize {
					err = fmt.Errorf("%d bytes expand to more than %d, want at most %d times as many",
						meta.TotalCompressedSize, text, maxExpansion)
				}
				if err != nil {
					return fmt.Errorf("page at byte %d: %w", at, err)
				}
				if !yield(v) {
					return nil
				}
			}
			at += length
		}
		if n != meta.NumValues {
			return fmt.Errorf("pages have %d values, want %d", n, meta.NumValues)
		}
		return nil
	})
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

// page is the content of a page.
type page struct {
	values          int // with nulls
	encoding        format.Encoding
	repeats, levels []byte // the encoded levels
	apart           bool   // the levels are not in data
	packed          bool
	data            []byte
	size            int // of the unpacked data
}

// page reads the page at byte at and returns the length that it has in the file. A dictionary is kept, and has no
// values.
func (r *pageReader) page(at, end int64) (p page, length int64, err error) {
	h, n, err := r.header(at, end)
	if err != nil {
		return p, 0, err
	}
	size, want := int64(h.CompressedPageSize), int64(h.UncompressedPageSize)
	if size < 0 || size > end-at-n || want < 0 || max(size, want) > maxPage {
		return p, 0, fmt.Errorf("%d bytes, unpacked %d, want at most %d and %d",
			size, want, min(end-at-n, maxPage), maxPage)
	}
	r.buffer = grow(r.buffer, int(size))
	if _, err := r.in.ReadAt(r.buffer, at+n); err != nil {
		return p, 0, unexpected(err)
	}
	if sum := crc32.ChecksumIEEE(r.buffer); h.CRC != 0 && uint32(h.CRC) != sum {
		return p, 0, fmt.Errorf("checksum %08x, want %08x", sum, uint32(h.CRC))
	}
	if p, err = r.describe(h, r.buffer); err == nil && p.packed && len(p.data) > 0 {
		p.data, err = r.unpack(p.data, p.size)
	}
	if err == nil && h.Type == format.DictionaryPage {
		err, p = r.readDictionary(p), page{encoding: format.Plain, apart: true}
	}
	return p, n + size, err
}

// header reads the header of the page at byte at. n is the length of the header.
func (r *pageReader) header(at, end int64) (h format.PageHeader, n int64, err error) {
	defer recoverParquet(&err)
	for size := int64(firstHeader); ; size *= 8 {
		r.buffer = grow(r.buffer, int(min(size, end-at)))
		if _, err := r.in.ReadAt(r.buffer, at); err != nil {
			return h, 0, unexpected(err)
		}
		n, err := checkStruct(r.buffer)
		if err != nil && size < end-at && size < maxHeader {
			continue
		}
		if err == nil {
			in := new(thrift.CompactProtocol).NewReaderFromBytes(bytes.Clone(r.buffer[:n]))
			err = thrift.NewDecoder(in).Decode(&h)
		}
		if err != nil {
			err = fmt.Errorf("header: %w", err)
		}
		return h, int64(n), err
	}
}

// describe returns the page of a header and the bytes after it.
func (r *pageReader) describe(h format.PageHeader, data []byte) (p page, err error) {
	p = page{data: data, packed: r.packing != "", size: int(h.UncompressedPageSize)}
	values := int32(0)
	switch {
	case h.Type == format.DictionaryPage && h.DictionaryPageHeader.Valid:
		values, p.encoding = h.DictionaryPageHeader.V.NumValues, h.DictionaryPageHeader.V.Encoding
	case h.Type == format.DataPage && h.DataPageHeader.Valid:
		v := h.DataPageHeader.V
		values, p.encoding = v.NumValues, v.Encoding
		levels, repeats := v.DefinitionLevelEncoding, v.RepetitionLevelEncoding
		if r.column.level > 0 && levels != format.RLE || r.column.repeats > 0 && repeats != format.RLE {
			return p, fmt.Errorf("levels in the encodings %v and %v, want RLE", levels, repeats)
		}
	case h.Type == format.DataPageV2 && h.DataPageHeaderV2.Valid:
		v := h.DataPageHeaderV2.V
		values, p.encoding, p.apart = v.NumValues, v.Encoding, true
		p.packed = p.packed && (!v.IsCompressed.Valid || v.IsCompressed.V)
		r, n := int(v.RepetitionLevelsByteLength), int(v.DefinitionLevelsByteLength)
		if r < 0 || n < 0 || r+n > min(len(data), p.size) {
			return p, fmt.Errorf("levels of %d and %d bytes in %d", n, r, len(data))
		}
		p.repeats, p.levels, p.data, p.size = data[:r], data[r:r+n], data[r+n:], p.size-r-n
	default:
		return p, fmt.Errorf("of type %v, want a dictionary or data", h.Type)
	}
	if p.values = int(values); p.values < 0 || p.values > maxValues {
		return p, fmt.Errorf("%d values, want at most %d", p.values, maxValues)
	}
	return p, nil
}

// unpack decompresses a page. Another length than want is an error.
func (r *pageReader) unpack(data []byte, want int) (_ []byte, err error) {
	n := -1
	if r.packing == ".snappy" {
		if n, err = snappy.DecodedLen(data); err == nil && n == want {
			r.unpacked, err = snappy.Decode(grow(r.unpacked, want), data)
		}
	} else {
		var in io.ReadCloser
		if in, err = unpacker(bytes.NewReader(data), r.packing); err == nil {
			defer in.Close()
			r.unpacked, err = readUpTo(in, r.unpacked[:0], want+1)
			n = len(r.unpacked)
		}
	}
	if err == nil && n != want {
		err = fmt.Errorf("%d bytes or more, want %d", n, want)
	}
	if err != nil {
		return nil, fmt.Errorf("unpack %s: %w", r.packing, unexpected(err))
	}
	return r.unpacked, nil
}

// readDictionary makes a dictionary of a page, whose memory it keeps.
func (r *pageReader) readDictionary(p page) error {
	if p.encoding != format.Plain && p.encoding != plainDictionary {
		return fmt.Errorf("a dictionary in the encoding %v, want PLAIN", p.encoding)
	}
	d, rest, err := dictionary{data: p.data}, p.data, error(nil)
	for range p.values {
		d.at = append(d.at, uint32(len(p.data)-len(rest)))
		if _, rest, err = cutString(rest); err != nil {
			return err
		}
	}
	r.dictionary, r.buffer, r.unpacked = d, nil, nil
	return nil
}

func (r *pageReader) values(p page) iter.Seq2[textValue, error] {
	return stream(func(yield func(textValue) bool) (err error) {
		if r.repeats, err = p.readLevels(r.repeats[:0], p.repeats, r.column.repeats); err != nil {
			return err
		}
		if r.levels, err = p.readLevels(r.levels[:0], p.levels, r.column.level); err != nil {
			return err
		}
		i, present := 0, bytes.Count(r.levels, []byte{byte(r.column.level)})
		next := func(text []byte, null bool) bool {
			i++
			return yield(textValue{text, null, r.levels[i-1], r.repeats[i-1]})
		}
		nulls := func() bool {
			for i < p.values && int(r.levels[i]) != r.column.level {
				if !next(nil, true) {
					return false
				}
			}
			return true
		}
		for text, err := range r.strings(p, present) {
			if err != nil {
				return err
			}
			if !nulls() || !next(text, false) {
				return nil
			}
		}
		nulls()
		return nil
	})
}

// readLevels appends the levels of the values, which are at most the given one: encoded in the given bytes, or in front
// of the data of the page.
func (p *page) readLevels(to, encoded []byte, most int) (_ []byte, err error) {
	if most == 0 {
		return append(to, make([]byte, p.values)...), nil
	}
	if !p.apart {
		if encoded, p.data, err = cutString(p.data); err != nil {
			return nil, fmt.Errorf("levels: %w", err)
		}
	}
	for level, err := range numbers(encoded, bits.Len(uint(most)), p.values) {
		if err != nil {
			return nil, fmt.Errorf("levels: %w", err)
		}
		to = append(to, byte(level))
	}
	return to, nil
}

// cutString returns the string that data begin with, behind its length in 4 bytes, and what follows it.
func cutString(data []byte) (text, rest []byte, err error) {
	if len(data) < 4 || int64(binary.LittleEndian.Uint32(data)) > int64(len(data)-4) {
		return nil, nil, errors.New("a string is longer than the page")
	}
	end := 4 + int(binary.LittleEndian.Uint32(data))
	return data[4:end:end], data[end:], nil
}

// grow returns a slice of n bytes, in the memory of b if that is large enough.
func grow(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}
