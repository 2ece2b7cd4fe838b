package corpus

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	packing "github.com/parquet-go/parquet-go/compress"
	"github.com/parquet-go/parquet-go/encoding"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestParquetEncodings: what Open accepts can be read, with each encoding of strings, compression and version of pages.
func TestParquetEncodings(t *testing.T) {
	documents := append(testutil.Documents(300, 60, 1), "apple", "application", "apply", "", "grün 漢",
		strings.Repeat("application ", 5000))
	codecs := map[string]packing.Codec{
		"none": &parquet.Uncompressed, "snappy": &parquet.Snappy, "gzip": &parquet.Gzip, "brotli": &parquet.Brotli,
		"zstd": &parquet.Zstd, "lz4": &parquet.Lz4Raw,
	}
	encodings := map[string]encoding.Encoding{
		"plain": &parquet.Plain, "dictionary": &parquet.RLEDictionary, "delta length": &parquet.DeltaLengthByteArray,
		"delta": &parquet.DeltaByteArray,
	}
	for codecName, codec := range codecs {
		for encodingName, e := range encodings {
			for version := 1; version <= 2; version++ {
				for _, optional := range []bool{false, true} {
					t.Run(fmt.Sprint(codecName, "/", encodingName, "/", version, "/", optional), func(t *testing.T) {
						node := parquet.Compressed(parquet.Encoded(parquet.String(), e), codec)
						if optional {
							node = parquet.Optional(node)
						}
						var b bytes.Buffer
						w := parquet.NewGenericWriter[any](&b, parquet.NewSchema("row", parquet.Group{"text": node}),
							parquet.DataPageVersion(version), parquet.PageBufferSize(4000))
						for _, d := range documents {
							level := 0
							if optional {
								level = 1
							}
							testutil.Must(w.WriteRows([]parquet.Row{{parquet.ValueOf(d).Level(0, level, 0)}}))(t)
						}
						require.NoError(t, w.Close())
						path := filepath.Join(writeFiles(t, map[string][]byte{"a.parquet": b.Bytes()}), "a.parquet")
						if codecName == "lz4" {
							require.ErrorContains(t, openError(t, path, Options{}),
								"compression LZ4_RAW, want none, Snappy, gzip, Brotli or Zstandard: write the file with zstd")
							return
						}
						texts, skipped := readTexts(t, "a.parquet", b.Bytes(), "")
						require.Equal(t, append(append([]string{}, documents[:303]...), documents[304:]...), texts)
						require.Equal(t, []Skipped{{reasonEmpty, 1, "a.parquet"}}, skipped)
					})
				}
			}
		}
	}
}

// changeFooter returns a Parquet file with a changed footer.
func changeFooter(t *testing.T, content []byte, change func(*format.FileMetaData)) []byte {
	t.Helper()
	f := testutil.Must(parquet.OpenFile(bytes.NewReader(content), int64(len(content))))(t)
	meta := f.Metadata()
	change(meta)
	footer := testutil.Must(thrift.Marshal(new(thrift.CompactProtocol), meta))(t)
	old := int(content[len(content)-8]) | int(content[len(content)-7])<<8
	out := append(bytes.Clone(content[:len(content)-8-old]), footer...)
	return append(out, byte(len(footer)), byte(len(footer)>>8), 0, 0, 'P', 'A', 'R', '1')
}

// TestParquetFooters: Open checks all that a footer says.
func TestParquetFooters(t *testing.T) {
	content := columnParquet(t, []string{"a text", "more text"}, &parquet.RLEDictionary)
	column := func(change func(c *format.ColumnChunk)) func(*format.FileMetaData) {
		return func(m *format.FileMetaData) { change(&m.RowGroups[0].Columns[0]) }
	}
	for want, change := range map[string]func(*format.FileMetaData){
		"":                           func(*format.FileMetaData) {},
		"compression LZO":            column(func(c *format.ColumnChunk) { c.MetaData.Codec = format.LZO }),
		"compression LZ4":            column(func(c *format.ColumnChunk) { c.MetaData.Codec = format.Lz4 }),
		"compression CompressionCod": column(func(c *format.ColumnChunk) { c.MetaData.Codec = 77 }),
		"encoding BYTE_STREAM_SPLIT": column(func(c *format.ColumnChunk) { c.MetaData.Encoding = []format.Encoding{format.ByteStreamSplit} }),
		"encoding DELTA_BINARY":      column(func(c *format.ColumnChunk) { c.MetaData.Encoding = []format.Encoding{format.DeltaBinaryPacked} }),
		"encoding BIT_PACKED": column(func(c *format.ColumnChunk) {
			c.MetaData.EncodingStats = []format.PageEncodingStats{{PageType: format.DataPage,
				Encoding: format.BitPacked, Count: 1}}
		}),
		"values of INT64":            column(func(c *format.ColumnChunk) { c.MetaData.Type = format.Int64 }),
		"in another file, \"x\"":     column(func(c *format.ColumnChunk) { c.FilePath = "x" }),
		"the column is encrypted":    column(func(c *format.ColumnChunk) { c.EncryptedColumnMetadata = []byte("x") }),
		"-1 values":                  column(func(c *format.ColumnChunk) { c.MetaData.NumValues = -1 }),
		"pages at byte -1":           column(func(c *format.ColumnChunk) { c.MetaData.DictionaryPageOffset = -1 }),
		"pages at byte 4 to 4+99999": column(func(c *format.ColumnChunk) { c.MetaData.TotalCompressedSize = 99999 }),
		"not have enough columns":    func(m *format.FileMetaData) { m.RowGroups[0].Columns = nil },
		"the file is encrypted":      func(m *format.FileMetaData) { m.EncryptionAlgorithm.Value = new(format.AesGcmV1) },
	} {
		path := filepath.Join(writeFiles(t, map[string][]byte{"a.parquet": changeFooter(t, content, change)}), "a.parquet")
		_, err := Open(t.Context(), path, Options{})
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, path)
	}
}

// TestParquetColumns: the option names a column, one inside of others, or a list of messages.
func TestParquetColumns(t *testing.T) {
	type message struct {
		Role    string  `parquet:"role"`
		Content *string `parquet:"content"`
	}
	type row struct {
		Text string `parquet:"text"`
		Doc  *struct {
			Title string  `parquet:"title"`
			Body  *string `parquet:"body"`
		} `parquet:"doc"`
		Tags     []string  `parquet:"tags,list"`
		Messages []message `parquet:"messages,list"`
		Plain    []message `parquet:"plain"`
		Number   int64     `parquet:"n"`
		Price    []byte    `parquet:"price,decimal(2:10)"`
	}
	hi := "Hi"
	rows := []row{{Text: "one"}, {Text: "two", Doc: &struct {
		Title string  `parquet:"title"`
		Body  *string `parquet:"body"`
	}{"t", &hi}, Messages: []message{{"user", &hi}, {"assistant", nil}}, Plain: []message{{"user", &hi}}}, {Text: "three"}}
	var b bytes.Buffer
	w := parquet.NewGenericWriter[row](&b)
	_, err := w.Write(rows)
	if err != nil { // decimals of bytes are not written by every version
		t.Fatal(err)
	}
	require.NoError(t, w.Close())
	for field, want := range map[string]string{"": "one|two|three", "doc.body": "Hi",
		"messages": "user: Hi\n\nassistant: ", "plain": "user: Hi"} {
		texts, skipped := readTexts(t, "a.PARQUET", b.Bytes(), field)
		require.Equal(t, want, strings.Join(texts, "|"))
		require.Equal(t, field == "", skipped == nil, skipped)
	}
	path := filepath.Join(writeFiles(t, map[string][]byte{"a.parquet": b.Bytes()}), "a.parquet")
	for field, want := range map[string]string{
		"body": `want a column "body", there is none; the columns are ["text" "doc" "doc.title" "doc.body"`,
		"tags": `column "tags" is of`,
		"n":    `column "n" is of`, "doc": `column "doc" is of`, "price": `column "price" is of`,
	} {
		require.ErrorContains(t, openError(t, path, Options{TextField: field}), want)
	}
}

// TestNestedParquetOfPython: columns inside of others and messages that pyarrow has written.
func TestNestedParquetOfPython(t *testing.T) {
	folder := pythonParquet(t)
	for _, version := range []string{"1.0", "2.0"} {
		content := testutil.Must(os.ReadFile(filepath.Join(folder, "nested-"+version+".pq")))(t)
		texts, _ := readTexts(t, "a.parquet", content, "doc.body")
		require.Len(t, texts, 86)
		require.Equal(t, "document 2 word word ", texts[2])
		for _, field := range []string{"messages", "doc.chat"} {
			texts, skipped := readTexts(t, "a.parquet", content, field)
			var want []string
			for i := range 100 {
				if i%7 != 6 && i%3 > 0 {
					want = append(want, fmt.Sprintf("user: question %d", i)+[]string{"", "", "\n\nassistant: "}[i%3])
				}
			}
			require.Equal(t, want, texts)
			require.Equal(t, []Skipped{{reasonNull, 100 - len(want), "a.parquet"}}, skipped)
		}
	}
}
