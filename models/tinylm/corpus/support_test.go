package corpus

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding"
	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// writeFiles writes files into a new folder and returns its path. Contents of names with .gz or .zst are compressed.
func writeFiles(t testing.TB, files map[string][]byte) string {
	t.Helper()
	folder := t.TempDir()
	for name, content := range files {
		path := filepath.Join(folder, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		_, compression := cutCompression(name)
		require.NoError(t, os.WriteFile(path, compress(t, content, compression), 0o644))
	}
	return folder
}

func compress(t testing.TB, content []byte, compression string) []byte {
	t.Helper()
	var b bytes.Buffer
	switch compression {
	case ".gz":
		w := gzip.NewWriter(&b)
		testutil.Must(w.Write(content))(t)
		require.NoError(t, w.Close())
	case ".zst":
		w := testutil.Must(zstd.NewWriter(&b, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true)))(t)
		testutil.Must(w.Write(content))(t)
		require.NoError(t, w.Close())
	default:
		return content
	}
	return b.Bytes()
}

func jsonl(t testing.TB, documents []string) []byte {
	t.Helper()
	var b bytes.Buffer
	for i, d := range documents {
		line := testutil.Must(json.Marshal(map[string]any{"id": i, "text": d, "score": 0.5}))(t)
		b.Write(append(line, '\n'))
	}
	return b.Bytes()
}

// parquetBytes returns a Parquet file whose row groups have group documents each.
func parquetBytes(t testing.TB, documents []string, group int) []byte {
	t.Helper()
	type row struct {
		ID   int64   `parquet:"id"`
		Text *string `parquet:"text,optional,zstd"`
	}
	var b bytes.Buffer
	w := parquet.NewGenericWriter[row](&b)
	for i := range documents {
		testutil.Must(w.Write([]row{{int64(i), &documents[i]}}))(t)
		if (i+1)%group == 0 {
			require.NoError(t, w.Flush())
		}
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

// columnParquet returns a Parquet file with nothing but a column of texts.
func columnParquet(t testing.TB, documents []string, e encoding.Encoding, options ...parquet.WriterOption) []byte {
	t.Helper()
	type row struct {
		Text string `parquet:"text"`
	}
	var rows []row
	for _, d := range documents {
		rows = append(rows, row{d})
	}
	var b bytes.Buffer
	options = append(options, parquet.NewSchema("row", parquet.Group{"text": parquet.Encoded(parquet.String(), e)}))
	require.NoError(t, parquet.Write(&b, rows, options...))
	return b.Bytes()
}

// llmcBytes returns a file of llm.c with the tokens of documents, a separator before each.
func llmcBytes(documents []string) []byte {
	header := make([]byte, llmcHeader)
	var tokens []byte
	for _, d := range documents {
		for _, b := range []byte("\x00" + d) {
			tokens = binary.LittleEndian.AppendUint16(tokens, uint16(b))
		}
	}
	for i, x := range []uint32{llmcUint16, 1, uint32(len(tokens) / 2)} {
		binary.LittleEndian.PutUint32(header[4*i:], x)
	}
	return append(header, tokens...)
}

// numpyBytes returns a file of NumPy with tokens of the given width.
func numpyBytes(tokens []int32, width int) []byte {
	header := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%d,), }",
		map[int]string{1: "|u1", 2: "<u2", 4: "<u4"}[width], len(tokens))
	header += strings.Repeat(" ", 63-(10+len(header))%64) + "\n"
	b := append([]byte("\x93NUMPY\x01\x00"), byte(len(header)), byte(len(header)>>8))
	b = append(b, header...)
	for _, id := range tokens {
		var word [4]byte
		binary.LittleEndian.PutUint32(word[:], uint32(id))
		b = append(b, word[:width]...)
	}
	return b
}

// joined returns the tokens of documents, a separator after each.
func joined(documents []string) []int32 {
	var ids []int32
	for _, d := range documents {
		for _, b := range []byte(d) {
			ids = append(ids, int32(b))
		}
		ids = append(ids, 0)
	}
	return ids
}

// openError is the error of Open.
func openError(t testing.TB, path string, o Options) error {
	return testutil.Err(Open(t.Context(), path, o))
}

// open opens a corpus with small blocks.
func open(t testing.TB, path string, o Options, block int) *Corpus {
	t.Helper()
	c := testutil.Must(Open(t.Context(), path, o))(t)
	c.blockTokens = block
	return c
}

// epochOf returns the batches of the epoch of a cursor, read without goroutines. It leaves out a batch with rows of two
// epochs.
func epochOf(t testing.TB, c *Corpus, s Shape, from Cursor) []*Batch {
	t.Helper()
	var all []*Batch
	for b, err := range c.batches(c.blocks(t.Context(), start(from), s.Seq), s, from) {
		require.NoError(t, err)
		if b.After.Epoch == from.Epoch {
			all = append(all, b)
			continue
		}
		if b.After.Epoch == from.Epoch+1 && b.After.Block == 0 && b.After.Window == 0 && b.After.Token == 0 {
			all = append(all, b)
		}
		break
	}
	return all
}

// textsOf returns the documents of batches, sorted. A window must hold a whole block.
func textsOf(t testing.TB, batches []*Batch) []string {
	t.Helper()
	var all []string
	for _, b := range batches {
		seq := len(b.Tokens)
		var text []byte
		for i := range seq {
			if b.Targets[i] < 0 {
				break
			}
			text = append(text, byte(b.Tokens[i]))
		}
		all = append(all, strings.Split(string(text), "\x00")...)
	}
	slices.Sort(all)
	return all
}

func sorted(all []string) []string { return slices.Sorted(slices.Values(all)) }

// pythonParquet returns a folder of files written by pyarrow. Without pyarrow it skips the test.
func pythonParquet(t testing.TB) string {
	t.Helper()
	testutil.RequirePython(t, "pyarrow")
	folder := t.TempDir()
	out, err := exec.Command("python3", "testdata/write_parquet.py", folder).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return folder
}

// requireHarmless writes the content of a file and reads an epoch of it. The error, which requireHarmless returns,
// names the file. Nothing panics, and all takes little memory and little time.
func requireHarmless(t *testing.T, path string, content []byte) error {
	t.Helper()
	const maxBytes, maxTime = 600 << 20, 10 * time.Second
	require.NoError(t, os.WriteFile(path, content, 0o644))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	err := readAll(t, path)
	if err != nil {
		require.ErrorContains(t, err, path)
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(maxBytes))
	require.Less(t, time.Since(began), maxTime)
	return err
}

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
