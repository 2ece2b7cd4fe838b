package corpus

import (
	"errors"
	"fmt"
	"strings"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

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
		if isListText(role) && isListText(content) {
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
	return fmt.Errorf("column %q is of %.200q, want strings, or a list of messages with a role and a content", field, c)
}

// isListText reports whether a column, which may be nil, has texts of a list in each row.
func isListText(c *parquet.Column) bool { return c != nil && isText(c) && c.MaxRepetitionLevel() == 1 }

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
			names = append(names, prefix+fmt.Sprintf("%.40s", c.Name()))
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
			return errEncoding(e)
		}
	}
	for _, s := range meta.EncodingStats {
		if !knowsEncoding(s.Encoding) || s.PageType != format.DictionaryPage && s.Encoding == format.BitPacked {
			return errEncoding(s.Encoding)
		}
	}
	if _, ok := packings()[meta.Codec]; !ok {
		return fmt.Errorf("parquet: compression %v, want none, Snappy, gzip, Brotli or Zstandard: write the file with zstd or snappy", meta.Codec)
	}
	_, err := pagesBegin(p.size, meta)
	return err
}
