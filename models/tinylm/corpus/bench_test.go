package corpus

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkReader reads with all its goroutines. The metric tokens/s is of two cores with -cpu 2.
func BenchmarkReader(b *testing.B) {
	documents := makeDocuments(4000, 16<<10, 1)
	text := []byte(strings.Join(documents, "\n"))
	files := map[string][]byte{"large/a.txt": text, "jsonl/a.jsonl": jsonl(b, documents), "parquet/a.parquet": parquetBytes(b, documents, 1000),
		"gz/a.txt.gz": text, "zst/a.txt.zst": text, "uint16/a.npy": numpyBytes(joined(documents), 2)}
	for i, d := range documents {
		files[fmt.Sprintf("small/%d.txt", i)] = []byte(d)
	}
	folder := writeFiles(b, files)
	for _, name := range []string{"large", "small", "jsonl", "parquet", "gz", "zst", "uint16"} {
		for _, shape := range []Shape{{16, 2048, 0}, {16, 2048, 64}} {
			b.Run(fmt.Sprintf("%s/documents=%d", name, shape.Documents), func(b *testing.B) {
				c, err := Open(b.Context(), filepath.Join(folder, name), Options{HeldOut: 1 << 20})
				require.NoError(b, err)
				r, err := c.Reader(shape, Cursor{})
				require.NoError(b, err)
				tokens := 0
				for b.Loop() {
					batch, err := r.Next(b.Context())
					require.NoError(b, err)
					tokens += batch.Targeted
				}
				require.NoError(b, r.Close())
				b.ReportMetric(float64(tokens)/b.Elapsed().Seconds()/1e6, "Mtokens/s")
			})
		}
	}
}
