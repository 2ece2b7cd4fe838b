package corpus

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strings"

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

// findColumns finds the columns that are read for a field: a column of strings, or those of a list of messages.
func (p *parquetFile) findColumns(field string) error {
	c := findColumn(p.file.Root(), field)
	switch {
	case c == nil:
		return fmt.Errorf("want a column %q, there is none; the columns are %q", field, columnNames(p.file.Root()))
	case isText(c) && c.MaxRepetitionLevel() == 0:
		p.columns = []parquetColumn{{c.Index(), c.MaxDefinitionLevel(), 0}}
		return nil
	}
	for m := c; !m.Leaf(); m = m.Columns()[0] { // through the groups of a list
		role, content := childOf(m, "role", "from"), childOf(m, "content", "value")
		if role != nil && content != nil && isText(role) && isText(content) && role.MaxRepetitionLevel() == 1 && content.MaxRepetitionLevel() == 1 {
			p.message = m.MaxDefinitionLevel()
			for _, c := range []*parquet.Column{role, content} {
				p.columns = append(p.columns, parquetColumn{c.Index(), c.MaxDefinitionLevel(), 1})
			}
			return nil
		}
		if len(m.Columns()) != 1 {
			break
		}
	}
	return fmt.Errorf("column %q is of %v, want strings, or a list of messages with a role and a content", field, c)
}

// isText reports whether a column has text or bytes.
func isText(c *parquet.Column) bool {
	if !c.Leaf() || c.Type().Kind() != parquet.ByteArray {
		return false
	}
	l := c.Type().LogicalType()
	return l == nil || l.Value == nil || isTextType(l.Value)
}

func isTextType(l any) bool {
	switch l.(type) {
	case *format.StringType, *format.JsonType, *format.EnumType:
		return true
	}
	return false
}

// findColumn returns the column of a path like a.b, nil if there is none.
func findColumn(group *parquet.Column, path string) *parquet.Column {
	for _, c := range group.Columns() {
		if c.Name() == path {
			return c
		}
		if rest, ok := strings.CutPrefix(path, c.Name()+"."); ok {
			if found := findColumn(c, rest); found != nil {
				return found
			}
		}
	}
	return nil
}

// childOf returns the first of some columns that a group has, or nil.
func childOf(group *parquet.Column, names ...string) *parquet.Column {
	for _, name := range names {
		if c := group.Column(name); c != nil {
			return c
		}
	}
	return nil
}

// columnNames returns the names of the first columns, nested ones as a.b.
func columnNames(root *parquet.Column) (names []string) {
	var add func(prefix string, c *parquet.Column)
	add = func(prefix string, c *parquet.Column) {
		if len(names) < maxFields {
			names = append(names, prefix+c.Name())
		}
		for _, inner := range c.Columns() {
			if c.MaxRepetitionLevel() == 0 && len(names) < maxFields {
				add(prefix+c.Name()+".", inner)
			}
		}
	}
	for _, c := range root.Columns() {
		add("", c)
	}
	return names
}

// checkColumn checks what the footer says of a column in a row group.
func (p *parquetFile) checkColumn(group int, c parquetColumn) error {
	chunks := p.file.Metadata().RowGroups[group].Columns
	if c.index >= len(chunks) {
		return fmt.Errorf("%d columns, want more than %d", len(chunks), c.index)
	}
	chunk := &chunks[c.index]
	if chunk.FilePath != "" {
		return fmt.Errorf("its data are in another file, %.100q", chunk.FilePath)
	}
	if chunk.CryptoMetadata.Value != nil || len(chunk.EncryptedColumnMetadata) > 0 {
		return errors.New("the column is encrypted")
	}
	meta := &chunk.MetaData
	if meta.Type != format.ByteArray {
		return fmt.Errorf("the column has values of %v, want %v", meta.Type, format.ByteArray)
	}
	if meta.NumValues < 0 || meta.NumValues != p.meta(group, p.columns[0]).NumValues {
		return fmt.Errorf("%d values, want %d", meta.NumValues, p.meta(group, p.columns[0]).NumValues)
	}
	for _, e := range meta.Encoding {
		if !knowsEncoding(e) {
			return fmt.Errorf("encoding %v, want PLAIN, a dictionary, DELTA_LENGTH_BYTE_ARRAY or DELTA_BYTE_ARRAY", e)
		}
	}
	for _, s := range meta.EncodingStats {
		if !knowsEncoding(s.Encoding) || s.PageType != format.DictionaryPage && s.Encoding == format.BitPacked {
			return fmt.Errorf("encoding %v, want PLAIN, a dictionary, DELTA_LENGTH_BYTE_ARRAY or DELTA_BYTE_ARRAY", s.Encoding)
		}
	}
	if _, err := pagesBegin(p.size, meta); err != nil {
		return err
	}
	return checkCompression(meta.Codec)
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
