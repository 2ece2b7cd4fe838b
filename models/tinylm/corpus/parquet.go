package corpus

import (
	"cmp"
	"errors"
	"fmt"
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
	p.file, err = parquet.OpenFile(p.in, f.size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
	if err != nil {
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

func readRowGroups(f file, u unit) documents {
	return stream(func(yield func(document) bool) error {
		p, err := openParquet(f)
		if err != nil {
			return err
		}
		defer p.in.Close()
		for group := u.from; group < u.to; group++ {
			for d, err := range p.documents(int(group)) {
				if err != nil {
					return fmt.Errorf("row group %d: %w", group, err)
				}
				if !yield(d) {
					return nil
				}
			}
		}
		return nil
	})
}

// documents yields the documents of a row group, one a row.
func (p *parquetFile) documents(group int) documents {
	if len(p.columns) == 2 {
		return p.messages(group)
	}
	return func(yield func(document, error) bool) {
		for v, err := range p.values(group, p.columns[0]) {
			d := document{text: v.text}
			switch {
			case err != nil:
			case v.null:
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
	return stream(func(yield func(document) bool) error {
		next, stop := iter.Pull2(p.values(group, p.columns[1]))
		defer stop()
		var d document
		row, text := 0, []byte(nil)
		for role, err := range p.values(group, p.columns[0]) {
			content, contentErr, ok := next()
			if err = errors.Join(err, contentErr); err == nil && (!ok || role.repeat != content.repeat) {
				err = fmt.Errorf("row %d: roles and contents do not fit together", row)
			}
			if err != nil {
				return err
			}
			if role.repeat == 0 {
				if d.text = text; row > 0 && !yield(d) {
					return nil
				}
				row, d, text = row+1, document{}, text[:0]
			}
			switch {
			case int(role.level) < p.message: // an empty list, or none
				d.skip = reasonNull
			case role.null:
				d.skip = reasonNoText
			case d.skip != "" || len(text)+len(content.text) > documentBytes:
				d.skip = reasonLong
			default:
				if role.repeat > 0 {
					text = append(text, "\n\n"...)
				}
				text = append(append(append(text, role.text...), ": "...), content.text...)
			}
		}
		if d.text = text; row > 0 {
			yield(d)
		}
		return nil
	})
}
