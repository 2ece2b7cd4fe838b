package corpus

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/parquet-go/parquet-go"
)

// openParquet opens a Parquet file and finds its column "text".
func openParquet(f file) (*os.File, *parquet.File, int, error) {
	in, err := os.Open(f.path)
	if err != nil {
		return nil, nil, 0, err
	}
	p, column, err := findText(in, f.size)
	if err != nil {
		in.Close()
		return nil, nil, 0, err
	}
	return in, p, column, nil
}

func findText(in *os.File, size int64) (p *parquet.File, column int, err error) {
	defer recoverParquet(&err)
	info, err := in.Stat()
	if err != nil {
		return nil, 0, err
	}
	if info.Size() != size {
		return nil, 0, fmt.Errorf("has %d bytes, had %d when the corpus was opened", info.Size(), size)
	}
	p, err = parquet.OpenFile(in, size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
	if err != nil {
		return nil, 0, err
	}
	leaf, ok := p.Schema().Lookup("text")
	if !ok {
		return nil, 0, fmt.Errorf(`want a column "text", there is none`)
	}
	kind := leaf.Node.Type().Kind()
	if (kind != parquet.ByteArray && kind != parquet.FixedLenByteArray) || leaf.MaxRepetitionLevel > 0 {
		return nil, 0, fmt.Errorf(`column "text" is of %v, want strings`, leaf.Node)
	}
	return p, leaf.ColumnIndex, nil
}

// recoverParquet makes a panic of the library an error: it trusts much of what a file says.
func recoverParquet(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("parquet: broken file: %v", p)
	}
}

// rowGroups returns the number of row groups.
func rowGroups(f file) (n int64, err error) {
	in, p, _, err := openParquet(f)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	return int64(len(p.RowGroups())), nil
}

// readRowGroup gives the documents of a row group.
func readRowGroup(f file, u unit) documents {
	return func(yield func(document, error) bool) {
		in, p, column, err := openParquet(f)
		if err != nil {
			yield(document{}, err)
			return
		}
		defer in.Close()
		chunk := p.RowGroups()[u.from].ColumnChunks()[column]
		pages := chunk.Pages()
		defer pages.Close()
		values := make([]parquet.Value, 64)
		for row := int64(0); ; {
			page, err := pages.ReadPage()
			if err == io.EOF {
				return
			}
			if err != nil {
				yield(document{}, fmt.Errorf("row group %d, row %d: %w", u.from, row, unexpected(err)))
				return
			}
			in := page.Values()
			for {
				n, err := in.ReadValues(values)
				for _, v := range values[:n] {
					d := document{text: v.ByteArray()}
					if v.IsNull() {
						d.skip = reasonNull
					}
					row++
					if !yield(d, nil) {
						return
					}
				}
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					yield(document{}, err)
					return
				}
			}
			parquet.Release(page)
		}
	}
}
