package corpus

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// formats writes the same documents in all formats.
func formats(t *testing.T, documents []string) map[string]map[string][]byte {
	half := len(documents) / 2
	text := map[string][]byte{}
	for i, d := range documents {
		text[fmt.Sprintf("%02d/%04d.txt%s", i%7, i, []string{"", ".gz", ".zst"}[i%3])] = []byte(d)
	}
	return map[string]map[string][]byte{
		"text":         text,
		"jsonl":        {"a.jsonl": jsonl(t, documents[:half]), "b.jsonl": jsonl(t, documents[half:])},
		"jsonl.gz":     {"a.jsonl.gz": jsonl(t, documents)},
		"jsonl.zst":    {"a.jsonl.zst": jsonl(t, documents)},
		"parquet":      {"a.parquet": parquetBytes(t, documents[:half], 7), "b.parquet": parquetBytes(t, documents[half:], 1000)},
		"mixed":        {"a.parquet": parquetBytes(t, documents[:half], 50), "b.jsonl.gz": jsonl(t, documents[half:])},
		"numpy uint8":  {"a.npy": numpyBytes(joined(documents), 1)},
		"numpy uint16": {"a.npy": numpyBytes(joined(documents), 2)},
		"numpy uint32": {"a.npy.zst": numpyBytes(joined(documents), 4)},
	}
}

func TestFormatsGiveTheSameDocuments(t *testing.T) {
	documents := makeDocuments(300, 200, 1)
	for name, files := range formats(t, documents) {
		t.Run(name, func(t *testing.T) {
			folder := writeFiles(t, files)
			c := open(t, folder, Options{Seed: 3}, 1<<20)
			require.Equal(t, sorted(documents), textsOf(t, epochOf(t, c, Shape{Batch: 1, Seq: 1 << 20}, Cursor{})))

			c = open(t, folder, Options{Seed: 3, HeldOut: 1 << 30}, 1<<20)
			require.Equal(t, splitHash, c.split.Kind)
			train := textsOf(t, epochOf(t, c, Shape{Batch: 1, Seq: 1 << 20}, Cursor{}))
			batches, err := c.HeldOut(Shape{Batch: 1, Seq: 1 << 20}, 0)
			require.NoError(t, err)
			held := textsOf(t, batches)
			require.Equal(t, sorted(documents), sorted(append(train, held...)))
			require.Greater(t, len(held), 3)
		})
	}
}
