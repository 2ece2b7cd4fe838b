package corpus

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// A damaged file gives an error that names it, or data. Reading it does not panic, and takes little memory and little time.
func TestDamagedFiles(t *testing.T) {
	const maxBytes, maxTime = 600 << 20, 10 * time.Second
	documents := testutil.Documents(60, 100, 1)
	python := map[string][]byte{} // files of pyarrow by name
	if folder := pythonParquet(t); folder != "" {
		for _, name := range []string{"snappy-1.0-dictionary", "none-1.0-dictionary", "none-2.0-plain"} {
			content := testutil.Must(os.ReadFile(filepath.Join(folder, name+".parquet")))(t)
			python[name] = content
		}
	}
	contents := map[string][]byte{
		"a.jsonl":        jsonl(t, documents),
		"a.parquet":      parquetBytes(t, documents, 20),
		"snappy.parquet": python["snappy-1.0-dictionary"],
		"words.parquet":  python["none-1.0-dictionary"],
		"plain.parquet":  python["none-2.0-plain"],
		"delta.parquet":  deltaParquet(t, documents),
		"prefix.parquet": columnParquet(t, documents, parquet.Encoded(parquet.String(), &parquet.DeltaByteArray)),
		"a.txt.gz":       compress(t, []byte(strings.Join(documents, " ")), ".gz"),
		"a.jsonl.zst":    compress(t, jsonl(t, documents), ".zst"),
		"a.npy":          numpyBytes(joined(documents), 2),
		"a.bin":          llmcBytes(documents),
	}
	for name, content := range contents {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if content == nil {
				t.Skip("no pyarrow")
			}
			r := rand.New(rand.NewPCG(1, 2))
			path := filepath.Join(t.TempDir(), name)
			require.NoError(t, os.WriteFile(path, content, 0o644))
			require.NoError(t, readAll(t, path))
			failed := 0
			for i := range testutil.Mutations(t) {
				require.NoError(t, os.WriteFile(path, testutil.Mutate(r, content), 0o644))
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				began := time.Now()
				err := readAll(t, path)
				if err != nil {
					failed++
					require.ErrorContains(t, err, path, "mutation %d", i)
				}
				runtime.ReadMemStats(&after)
				require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(maxBytes), "mutation %d", i)
				require.Less(t, time.Since(began), maxTime, "mutation %d", i)
			}
			t.Logf("%s: %d of %d are errors", name, failed, testutil.Mutations(t))
		})
	}
}

// readAll reads an epoch of a corpus.
func readAll(t *testing.T, path string) error {
	c, err := Open(t.Context(), path, Options{HeldOut: 100})
	if err != nil {
		return err
	}
	s := Shape{Batch: 2, Seq: 64}
	for b, err := range c.batches(c.blocks(t.Context(), Cursor{}, s.Seq), s, Cursor{}) {
		if err != nil || b.After.Epoch > 0 {
			return err
		}
	}
	return nil
}
