package corpus

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

// findColumns finds the columns that are read for a field: a column of strings, or those of a list of messages.
func (p *parquetFile) findColumns(field string) error {
	c, names := findColumn(p.file.Root(), field)
	switch {
	case c == nil:
		return fmt.Errorf("want a column %q, there is none; the columns are %q", field, names)
	case isText(c) && c.MaxRepetitionLevel() == 0:
		p.columns = []parquetColumn{{c.Index(), c.MaxDefinitionLevel(), 0}}
		return nil
	}
	for m := c; !m.Leaf(); m = m.Columns()[0] { // through the groups of a list
		p.message, p.columns = m.MaxDefinitionLevel(), nil
		for _, names := range [][2]string{{"role", "from"}, {"content", "value"}} {
			c := cmp.Or(m.Column(names[0]), m.Column(names[1]))
			if c != nil && isText(c) && c.MaxRepetitionLevel() == 1 {
				p.columns = append(p.columns, parquetColumn{c.Index(), c.MaxDefinitionLevel(), 1})
			}
		}
		if len(p.columns) == 2 {
			return nil
		}
		if len(m.Columns()) != 1 {
			break
		}
	}
	return fmt.Errorf("column %q is of %.200q, want strings, or a list of messages with a role and a content", field, c)
}

// isText reports whether a column has text or bytes.
func isText(c *parquet.Column) bool {
	if !c.Leaf() || c.Type().Kind() != parquet.ByteArray {
		return false
	}
	l := c.Type().LogicalType()
	if l == nil || l.Value == nil {
		return true
	}
	switch l.Value.(type) {
	case *format.StringType, *format.JsonType, *format.EnumType:
		return true
	}
	return false
}

// findColumn returns the column of a path like a.b, nil if there is none, and the paths of the first columns.
func findColumn(root *parquet.Column, sought string) (found *parquet.Column, names []string) {
	var walk func(prefix string, group *parquet.Column)
	walk = func(prefix string, group *parquet.Column) {
		for _, c := range group.Columns() {
			if !strings.HasPrefix(sought, prefix) && (group.MaxRepetitionLevel() > 0 || len(names) == maxFields) {
				return // what is in this group is neither sought nor named
			}
			path := prefix + c.Name()
			if path == sought && found == nil {
				found = c
			}
			if group.MaxRepetitionLevel() == 0 && len(names) < maxFields {
				names = append(names, fmt.Sprintf("%.60s", path))
			}
			walk(path+".", c)
		}
	}
	walk("", root)
	return found, names
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
		const want = "none, Snappy, gzip, Brotli or Zstandard: write the file with zstd or snappy"
		return fmt.Errorf("parquet: compression %v, want %s", meta.Codec, want)
	}
	_, err := pagesBegin(p.size, meta)
	return err
}
