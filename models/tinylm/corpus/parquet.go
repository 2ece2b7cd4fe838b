package corpus

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"github.com/gorgonia-nsa/nsa/internal/files"
)

// groupBytes is roughly the size of the row groups of a unit. With smaller units the footer would be read too often.
const groupBytes = 8 << 20

// parquetFile is an open Parquet file with a column of text, or two of the roles and contents of messages.
type parquetFile struct {
	in      *os.File
	size    int64
	file    *parquet.File
	columns []parquetColumn
	message int // least definition level of a message
}

// parquetColumn is a column of strings.
type parquetColumn struct {
	index   int
	level   int // largest definition level
	repeats int // largest repetition level
}

// openParquet opens a Parquet file and finds the column of the text. All that the footer says is checked.
func openParquet(f file) (p *parquetFile, err error) {
	in, err := files.Open(f.path)
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
	if err := p.findColumns(cmp.Or(f.field, defaultField)); err != nil {
		return err
	}
	for i := range p.file.Metadata().RowGroups {
		for _, c := range p.columns {
			if err := p.checkColumn(i, c); err != nil {
				return fmt.Errorf("parquet: row group %d: %w", i, err)
			}
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

// meta returns the description of a column in a row group.
func (p *parquetFile) meta(group int, c parquetColumn) *format.ColumnMetaData {
	return &p.file.Metadata().RowGroups[group].Columns[c.index].MetaData
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
		for _, c := range p.columns {
			bytes += max(1, p.meta(int(i), c).TotalUncompressedSize)
		}
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
			for d, err := range p.documents(int(group)) {
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

// documents yields the documents of a row group, one a row.
func (p *parquetFile) documents(group int) documents {
	if len(p.columns) == 2 {
		return p.messages(group)
	}
	return func(yield func(document, error) bool) {
		for v, err := range p.values(group, p.columns[0]) {
			d := document{text: v.ByteArray()}
			switch {
			case err != nil:
			case v.IsNull():
				d.skip = reasonNull
			case len(d.text) > documentBytes:
				d = document{skip: reasonLong}
			}
			if !yield(d, err) {
				return
			}
		}
	}
}

// messages yields the documents of a row group of lists of messages, written as those of JSON.
func (p *parquetFile) messages(group int) documents {
	return func(yield func(document, error) bool) {
		next, stop := iter.Pull2(p.values(group, p.columns[1]))
		defer stop()
		var d document
		row, text := 0, []byte(nil)
		for role, err := range p.values(group, p.columns[0]) {
			content, contentErr, ok := next()
			if err = errors.Join(err, contentErr); err == nil && (!ok || role.RepetitionLevel() != content.RepetitionLevel()) {
				err = fmt.Errorf("row %d: roles and contents do not fit together", row)
			}
			if err != nil {
				yield(document{}, err)
				return
			}
			if role.RepetitionLevel() == 0 {
				if d.text = text; row > 0 && !yield(d, nil) {
					return
				}
				row, d, text = row+1, document{}, text[:0]
			}
			switch {
			case role.DefinitionLevel() < p.message: // an empty list, or none
				d.skip = reasonNull
			case role.IsNull():
				d.skip = reasonNoText
			case d.skip != "" || len(text)+len(content.ByteArray()) > documentBytes:
				d.skip = reasonLong
			default:
				if role.RepetitionLevel() > 0 {
					text = append(text, "\n\n"...)
				}
				text = append(append(append(text, role.ByteArray()...), ": "...), content.ByteArray()...)
			}
		}
		if d.text = text; row > 0 {
			yield(d, nil)
		}
	}
}

// values yields the values of a column in a row group, each valid until the next.
func (p *parquetFile) values(group int, c parquetColumn) iter.Seq2[parquet.Value, error] {
	return func(yield func(parquet.Value, error) bool) {
		meta := p.meta(group, c)
		r := textReader{values: make([]parquet.Value, 64)}
		text, err := checkPages(p.in, p.size, meta, c)
		if err == nil {
			err = r.open(p.file.RowGroups()[group].ColumnChunks()[c.index])
		}
		if err != nil {
			yield(parquet.Value{}, err)
			return
		}
		defer r.close()
		row, bytes := int64(0), int64(0)
		for {
			values, err := r.next()
			if err == io.EOF && row == meta.NumValues {
				if bytes != text {
					yield(parquet.Value{}, fmt.Errorf("read %d bytes of text, want %d", bytes, text))
				}
				return
			}
			if err != nil {
				yield(parquet.Value{}, fmt.Errorf("value %d: %w", row, unexpected(err)))
				return
			}
			for _, v := range values {
				bytes += int64(len(v.ByteArray()))
				if bytes > freeExpansion && bytes/maxExpansion > meta.TotalCompressedSize {
					yield(parquet.Value{}, fmt.Errorf("value %d: %d bytes expand to more than %d, want at most %d times as many",
						row, meta.TotalCompressedSize, bytes, maxExpansion))
					return
				}
				row++
				if !yield(v, nil) {
					return
				}
			}
		}
	}
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
