package corpus

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// FuzzFiles: a file of any format is an error that names it, or data. Reading it does not panic, and takes little
// memory and little time.
func FuzzFiles(f *testing.F) {
	names := []string{"a.parquet", "a.jsonl", "a.npy", "a.bin", "a.txt", "a.txt.gz", "a.jsonl.zst", "a.npy.gz"}
	documents := testutil.Documents(5, 20, 1)
	lines, text := jsonl(f, documents), []byte(strings.Join(documents, "\n"))
	for _, c := range []struct {
		name    string
		content []byte
	}{
		{"a.parquet", parquetBytes(f, documents, 2)},
		{"a.parquet", columnParquet(f, documents, &parquet.DeltaLengthByteArray)},
		{"a.parquet", columnParquet(f, documents, &parquet.RLEDictionary)},
		{"a.jsonl", lines},
		{"a.jsonl", []byte(byteOrderMark + "{\"text\":\"\\ud800\"}\r\n \n{\"text\":null}\n{\"text\":\"a\"}")},
		{"a.npy", numpyBytes(joined(documents), 2)},
		{"a.bin", llmcBytes(documents)},
		{"a.txt", text},
		{"a.txt.gz", compress(f, text, ".gz")},
		{"a.jsonl.zst", compress(f, lines, ".zst")},
		{"a.npy.gz", compress(f, numpyBytes(joined(documents), 1), ".gz")},
	} {
		f.Add(byte(slices.Index(names, c.name)), c.content)
	}
	f.Fuzz(func(t *testing.T, kind byte, content []byte) {
		_ = requireHarmless(t, filepath.Join(t.TempDir(), names[int(kind)%len(names)]), content)
	})
}

// FuzzLine: a line of .jsonl has the text that package encoding/json reads, if both take it.
func FuzzLine(f *testing.F) {
	for _, line := range []string{`{"text":"a"}`, `{"id":1,"text":"\u00e9\\n"}`, `{"text":null}`, `{"text":"\ud800"}`, `{"text":1}`, "{\"text\":\"\xff\"}", "", `{"text":"a"} x`} {
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
		if got, ok := want["text"].(string); json.Unmarshal(line, &want) == nil && ok {
			require.Equal(t, got, string(d.text))
		}
	})
}
