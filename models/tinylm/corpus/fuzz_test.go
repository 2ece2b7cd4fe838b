package corpus

import (
	"bytes"
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// samples returns files of all formats by name.
func samples(t testing.TB, documents []string) map[string][]byte {
	lines, text := jsonl(t, documents), []byte(strings.Join(documents, "\n"))
	packed := []parquet.WriterOption{parquet.Compression(&parquet.Snappy), parquet.DataPageVersion(1)}
	return map[string][]byte{
		"a.jsonl":        lines,
		"odd.jsonl":      []byte(byteOrderMark + "{\"text\":\"\\ud800\"}\r\n \n{\"text\":null}\n{\"text\":\"a\"}" + string(lines)),
		"a.parquet":      parquetBytes(t, documents, 20),
		"snappy.parquet": columnParquet(t, documents, &parquet.RLEDictionary, packed...),
		"words.parquet":  columnParquet(t, documents, &parquet.RLEDictionary, parquet.DataPageVersion(1)),
		"plain.parquet":  columnParquet(t, documents, &parquet.Plain),
		"delta.parquet":  columnParquet(t, documents, &parquet.DeltaLengthByteArray),
		"prefix.parquet": columnParquet(t, documents, &parquet.DeltaByteArray),
		"a.txt":          text,
		"a.txt.gz":       compress(t, text, ".gz"),
		"a.jsonl.zst":    compress(t, lines, ".zst"),
		"a.npy":          numpyBytes(joined(documents), 2),
		"a.npy.gz":       compress(t, numpyBytes(joined(documents), 1), ".gz"),
		"a.bin":          llmcBytes(documents),
	}
}

// FuzzFiles: see requireHarmless.
func FuzzFiles(f *testing.F) {
	all := samples(f, testutil.Documents(5, 20, 1))
	names := slices.Sorted(maps.Keys(all))
	for i, name := range names {
		f.Add(byte(i), all[name])
	}
	f.Fuzz(func(t *testing.T, kind byte, content []byte) {
		_ = requireHarmless(t, filepath.Join(t.TempDir(), names[int(kind)%len(names)]), content)
	})
}

// FuzzLine: a line of .jsonl has the text that package encoding/json reads, if both take it.
func FuzzLine(f *testing.F) {
	for _, line := range []string{`{"text":"a"}`, `{"id":1,"text":"\u00e9\\n"}`, `{"text":null}`, `{"text":"\ud800"}`,
		`{"text":1}`, "{\"text\":\"\xff\"}", "", `{"text":"a"} x`} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		if line = bytes.TrimSpace(line); len(line) == 0 {
			return
		}
		var text []byte
		d := file{field: defaultField}.lineDocument(line, &text)
		if d.skip != "" {
			require.Empty(t, d.text)
			return
		}
		var want map[string]any
		if json.Unmarshal(line, &want) == nil {
			if got, ok := want["text"].(string); ok {
				require.Equal(t, got, string(d.text))
			}
		}
	})
}
