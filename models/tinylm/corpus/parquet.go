package corpus

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

// groupBytes is roughly the size of the row groups of a unit. With smaller units the footer would be read too often.
const groupBytes = 8 << 20

// parquetFile is an open Parquet file with a column "text".
type parquetFile struct {
	in     *os.File
	size   int64
	file   *parquet.File
	column int
	level  int // largest definition level
}

// openParquet opens a Parquet file and finds its column "text".
func openParquet(f file) (p *parquetFile, err error) {
	in, err := os.Open(f.path)
	if err != nil {
		return nil, err
	}
	p = &parquetFile{in: in, size: f.size}
	if err := p.open(f); err != nil {
		in.Close()
		return nil, err
	}
	return p, nil
}

func (p *parquetFile) open(f file) (err error) {
	defer recoverParquet(&err)
	if err := f.checkSize(p.in); err != nil {
		return err
	}
	if err := checkFooter(p.in, f.size); err != nil {
		return err
	}
	if p.file, err = parquet.OpenFile(p.in, f.size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true)); err != nil {
		return fmt.Errorf("parquet: %w", err)
	}
	leaf, ok := p.file.Schema().Lookup("text")
	if !ok {
		return errors.New(`want a column "text", there is none`)
	}
	if leaf.Node.Type().Kind() != parquet.ByteArray || leaf.MaxRepetitionLevel > 0 {
		return fmt.Errorf(`column "text" is of %v, want strings`, leaf.Node)
	}
	p.column, p.level = leaf.ColumnIndex, leaf.MaxDefinitionLevel
	for i := range p.file.Metadata().RowGroups {
		if n := len(p.file.Metadata().RowGroups[i].Columns); p.column >= n {
			return fmt.Errorf("parquet: row group %d has %d columns, want more than %d", i, n, p.column)
		}
		if err := checkCompression(p.meta(int64(i)).Codec); err != nil {
			return err
		}
	}
	return nil
}

// recoverParquet turns a panic of the library into an error: the library trusts much of what a file says.
func recoverParquet(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("parquet: broken file: %v", p)
	}
}

// meta returns the description of the column in a row group.
func (p *parquetFile) meta(group int64) *format.ColumnMetaData {
	return &p.file.Metadata().RowGroups[group].Columns[p.column].MetaData
}

// rowGroups returns the ranges of row groups that become units.
func rowGroups(f file) (ranges [][2]int64, err error) {
	p, err := openParquet(f)
	if err != nil {
		return nil, err
	}
	defer p.in.Close()
	bytes := int64(0)
	for i := range int64(len(p.file.Metadata().RowGroups)) {
		if bytes == 0 || bytes >= groupBytes {
			ranges, bytes = append(ranges, [2]int64{i, i}), 0
		}
		ranges[len(ranges)-1][1]++
		bytes += max(1, p.meta(i).TotalUncompressedSize)
	}
	return ranges, nil
}

// readRowGroups yields the documents of the row groups of a unit.
func readRowGroups(f file, u unit) documents {
	return func(yield func(document, error) bool) {
		p, err := openParquet(f)
		if err != nil {
			yield(document{}, err)
			return
		}
		defer p.in.Close()
		for group := u.from; group < u.to; group++ {
			for d, err := range p.documents(group) {
				if err != nil {
					err = fmt.Errorf("row group %d: %w", group, err)
				}
				if !yield(d, err) || err != nil {
					return
				}
			}
		}
	}
}

// documents yields the documents of a row group.
func (p *parquetFile) documents(group int64) documents {
	return func(yield func(document, error) bool) {
		meta := p.meta(group)
		r := textReader{values: make([]parquet.Value, 64)}
		text, err := checkPages(p.in, p.size, meta, p.level)
		if err == nil {
			err = r.open(p.file.RowGroups()[group].ColumnChunks()[p.column])
		}
		if err != nil {
			yield(document{}, err)
			return
		}
		defer r.close()
		row, bytes := int64(0), int64(0)
		for {
			values, err := r.next()
			if err == io.EOF && row == meta.NumValues {
				if bytes != text {
					yield(document{}, fmt.Errorf("read %d bytes of text, want %d", bytes, text))
				}
				return
			}
			if err != nil {
				yield(document{}, fmt.Errorf("row %d: %w", row, unexpected(err)))
				return
			}
			for _, v := range values {
				d := document{text: v.ByteArray()}
				if v.IsNull() {
					d.skip = reasonNull
				}
				bytes += int64(len(d.text))
				if err := checkText(len(d.text), bytes, meta.TotalCompressedSize); err != nil {
					yield(document{}, fmt.Errorf("row %d: %w", row, err))
					return
				}
				row++
				if !yield(d, nil) {
					return
				}
			}
		}
	}
}

// checkText returns an error if a document is too long, or the text of a column is too long for its size in the file.
func checkText(document int, text, size int64) error {
	if document > documentBytes {
		return fmt.Errorf("a text of %d bytes, want at most %d", document, documentBytes)
	}
	if text > freeExpansion && text/maxExpansion > size {
		return fmt.Errorf("%d bytes expand to more than %d, want at most %d times as many", size, text, maxExpansion)
	}
	return nil
}

// textReader reads the values of a column. Its methods return panics of the library as errors.
type textReader struct {
	pages  parquet.Pages
	page   parquet.Page
	in     parquet.ValueReader // of the page
	values []parquet.Value
}

func (r *textReader) open(chunk parquet.ColumnChunk) (err error) {
	defer recoverParquet(&err)
	r.pages = chunk.Pages()
	return nil
}

// next returns the next values, at least one. They are valid until the next call.
func (r *textReader) next() (values []parquet.Value, err error) {
	defer recoverParquet(&err)
	for {
		if r.in == nil {
			if r.page, err = r.pages.ReadPage(); err != nil {
				return nil, err
			}
			r.in = r.page.Values()
		}
		n, err := r.in.ReadValues(r.values)
		if n > 0 {
			return r.values[:n], nil
		}
		if !errors.Is(err, io.EOF) {
			if err == nil {
				err = io.ErrNoProgress
			}
			return nil, err
		}
		parquet.Release(r.page)
		r.in, r.page = nil, nil
	}
}

func (r *textReader) close() (err error) {
	defer recoverParquet(&err)
	if r.page != nil {
		parquet.Release(r.page)
	}
	return r.pages.Close()
}
