package corpus

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// mutate changes a few bytes of a file, cuts it, or moves parts of it.
func mutate(r *rand.Rand, content []byte) []byte {
	b := append([]byte(nil), content...)
	for range 1 + r.IntN(3) {
		if len(b) == 0 {
			return b
		}
		at := r.IntN(len(b))
		if r.IntN(2) == 0 { // headers and footers
			at = min(at, r.IntN(64))
			if r.IntN(2) == 0 {
				at = len(b) - 1 - at
			}
		}
		end := min(len(b), at+1+r.IntN(16))
		switch r.IntN(7) {
		case 0:
			b[at] ^= 1 << r.IntN(8)
		case 1:
			b[at] = byte(r.IntN(256))
		case 2:
			b = b[:at]
		case 3:
			b = append(b[:at], b[end:]...)
		case 4:
			b = append(b[:end:end], b[at:]...)
		case 5:
			for i := at; i < end; i++ {
				b[i] = 0xff
			}
		case 6:
			copy(b[r.IntN(len(b)):], b[at:end])
		}
	}
	return b
}

// mutations returns how many files of a format are tried: 10,000 with NSA_MUTATIONS=10000, few by default.
func mutations(t *testing.T) int {
	s := os.Getenv("NSA_MUTATIONS")
	if s == "" {
		return 300
	}
	n, err := strconv.Atoi(s)
	require.NoError(t, err)
	return n
}

// A damaged file gives an error that names it, or data. It takes no panic, little memory and little time.
func TestDamagedFiles(t *testing.T) {
	const mostBytes, mostTime = 600 << 20, 10 * time.Second
	documents := makeDocuments(60, 100, 1)
	python := map[string][]byte{} // those of pyarrow
	if folder := pythonParquet(t); folder != "" {
		for _, name := range []string{"lz4-1.0-dictionary", "none-1.0-dictionary", "none-2.0-plain"} {
			content, err := os.ReadFile(filepath.Join(folder, name+".parquet"))
			require.NoError(t, err)
			python[name] = content
		}
	}
	for name, content := range map[string][]byte{
		"a.jsonl":        jsonl(t, documents),
		"a.parquet":      parquetBytes(t, documents, 20),
		"lz4.parquet":    python["lz4-1.0-dictionary"],
		"words.parquet":  python["none-1.0-dictionary"],
		"plain.parquet":  python["none-2.0-plain"],
		"delta.parquet":  deltaParquet(t, documents),
		"a.txt.gz":       pack(t, []byte(strings.Join(documents, " ")), ".gz"),
		"a.jsonl.zst":    pack(t, jsonl(t, documents), ".zst"),
		"a.npy":          numpyBytes(joined(documents), 2),
		"a.bin":          llmcBytes(documents),
		"tokenizer.json": smallTokenizer(t),
	} {
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
			for i := range mutations(t) {
				require.NoError(t, os.WriteFile(path, mutate(r, content), 0o644))
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				began := time.Now()
				err := readAll(t, path)
				if err != nil {
					failed++
					require.ErrorContains(t, err, path, "mutation %d", i)
				}
				runtime.ReadMemStats(&after)
				require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(mostBytes), "mutation %d", i)
				require.Less(t, time.Since(began), mostTime, "mutation %d", i)
			}
			t.Logf("%s: %d of %d are errors", name, failed, mutations(t))
		})
	}
}

// readAll reads an epoch of a corpus, or a tokenizer.
func readAll(t *testing.T, path string) error {
	if strings.HasSuffix(path, "tokenizer.json") {
		v, err := readTokenizer(path, "")
		if err == nil {
			_, err = v.encode(nil, []byte("Some text, 12 größer\n\n"))
			require.NoError(t, err)
		}
		return err
	}
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
