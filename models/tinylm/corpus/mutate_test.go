package corpus

import (
	"bytes"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding"
	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestDamagedFiles: a damaged file gives an error or data: see requireHarmless.
func TestDamagedFiles(t *testing.T) {
	for name, content := range samples(t, testutil.Documents(60, 100, 1)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(1, 2))
			path := filepath.Join(t.TempDir(), name)
			require.NoError(t, requireHarmless(t, path, content))
			failed := 0
			for range testutil.Mutations(t) {
				if requireHarmless(t, path, testutil.Mutate(r, content)) != nil {
					failed++
				}
			}
			t.Logf("%s: %d of %d are errors", name, failed, testutil.Mutations(t))
		})
	}
}

// TestDamagedPages damages the data of pages behind their checksum: they are an error or values, at most as many as the
// page says, and memory does not grow with what the data say.
func TestDamagedPages(t *testing.T) {
	documents := testutil.Documents(60, 100, 1)
	for _, e := range []encoding.Encoding{&parquet.Plain, &parquet.RLEDictionary, &parquet.DeltaLengthByteArray,
		&parquet.DeltaByteArray} {
		content := columnParquet(t, append(documents, documents...), e)
		path := filepath.Join(writeFiles(t, map[string][]byte{"a.parquet": content}), "a.parquet")
		p := testutil.Must(openParquet(file{path: path, size: int64(len(content))}))(t)
		meta, r := p.meta(0, p.columns[0]), &pageReader{in: bytes.NewReader(content)}
		at := testutil.Must(pagesBegin(p.size, meta))(t)
		for end := at + meta.TotalCompressedSize; at < end; {
			good, length, err := r.page(at, end)
			require.NoError(t, err)
			at += length
			random, damaged := rand.New(rand.NewPCG(1, 2)), 0
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range testutil.Mutations(t) {
				bad, n := good, 0
				bad.data, bad.apart = testutil.Mutate(random, good.data), random.IntN(2) == 0
				r.column = parquetColumn{level: random.IntN(3), repeats: random.IntN(2)}
				for _, err := range r.values(bad) {
					if n++; err != nil {
						damaged++
					}
				}
				require.LessOrEqual(t, n, good.values+1)
				_ = (&pageReader{}).readDictionary(bad)
			}
			runtime.ReadMemStats(&after)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(testutil.Mutations(t))<<16, "%v", e)
			require.True(t, damaged > 0 || good.values == 0)
		}
		require.NoError(t, p.in.Close())
	}
}

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
