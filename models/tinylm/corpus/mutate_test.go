package corpus

import (
	"bytes"
	"math/rand/v2"
	"path/filepath"
	"runtime"
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
