package corpus

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// noLeaks fails if goroutines still run at the end of the test.
func noLeaks(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
			require.True(t, time.Now().Before(end), "goroutines are left over")
		}
	})
}

// The reader returns the same batches as reading without goroutines, from the beginning and from a cursor. It can be
// closed at any moment.
func TestReaderMatchesSynchronousReading(t *testing.T) {
	noLeaks(t)
	for seed, o := range orderCases()[:20] {
		c, _ := numbered(t, o.units, o.documents, o.most, o.block, o.heldOut, uint64(seed))
		r := testutil.Must(c.Reader(o.shape, Cursor{}))(t)
		n, at := 0, Cursor{}
		for want, err := range c.batches(c.blocks(t.Context(), Cursor{}, o.shape.Seq), o.shape, Cursor{}) {
			require.NoError(t, err)
			got := testutil.Must(r.Next(t.Context()))(t)
			require.Equal(t, want, got)
			at = got.After
			if n++; n == 7 {
				require.NoError(t, r.Close())
				r = testutil.Must(c.Reader(o.shape, at))(t)
			}
			if n == 20 {
				break
			}
		}
		require.Less(t, r.Waits(), n)
		require.NoError(t, r.Close())
		require.NoError(t, r.Close())
		err := error(nil)
		for err == nil {
			_, err = r.Next(t.Context())
		}
		require.ErrorIs(t, err, ErrClosed)
	}
}

func TestReaderErrors(t *testing.T) {
	noLeaks(t)
	lines := jsonl(t, testutil.Documents(3000, 100, 1))
	folder := writeFiles(t, map[string][]byte{"a.txt": lines, "b.jsonl": lines, "c.jsonl": []byte("{\"text\": \"\"}\n")})
	s := Shape{Batch: 1, Seq: 32}

	packed := filepath.Join(folder, "a.txt.gz")
	require.NoError(t, os.WriteFile(packed, compress(t, lines, ".gz")[:len(lines)/16], 0o644))
	for name, want := range map[string]string{
		packed:                           packed + ": unpack: behind byte ",
		filepath.Join(folder, "b.jsonl"): "b.jsonl: has 100 bytes, had ",
		filepath.Join(folder, "c.jsonl"): `no document to read: 1 skipped as empty ("c.jsonl")`,
	} {
		c := open(t, name, Options{}, 1000)
		if strings.HasSuffix(name, "b.jsonl") {
			require.NoError(t, os.Truncate(name, 100))
		}
		r, err := c.Reader(s, Cursor{})
		for err == nil {
			_, err = r.Next(t.Context())
		}
		require.ErrorContains(t, err, want)
		require.Equal(t, err, testutil.Err(r.Next(t.Context())))
		require.NoError(t, r.Close())
	}
	c := open(t, filepath.Join(folder, "a.txt"), Options{}, 1000)
	for _, s := range []Shape{{}, {Batch: 1}, {Batch: 1, Seq: -1}, {Batch: 4, Seq: 4, Documents: 3},
		{Batch: 4, Seq: 4, Documents: 17}, {Batch: 1 << 20, Seq: 1 << 20}} {
		require.ErrorContains(t, testutil.Err(c.Reader(s, Cursor{})), "want")
	}
}

// slowSource yields no document and waits until its context ends.
type slowSource struct{}

func (slowSource) documents(ctx context.Context, _ unit) documents {
	return func(yield func(document, error) bool) {
		<-ctx.Done()
		yield(document{}, ctx.Err())
	}
}

func TestReaderEndsWhileItWaits(t *testing.T) {
	noLeaks(t)
	c, _ := numbered(t, 1, 10, 10, 100, 0, 1)
	c.source = slowSource{}
	r := testutil.Must(c.Reader(Shape{Batch: 1, Seq: 8}, Cursor{}))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, testutil.Err(r.Next(ctx)), context.DeadlineExceeded)
	require.NoError(t, r.Close())
	require.ErrorIs(t, testutil.Err(r.Next(t.Context())), ErrClosed)

	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	folder := writeFiles(t, map[string][]byte{"a.txt": []byte("text")})
	require.ErrorIs(t, testutil.Err(Open(ctx, folder, Options{HeldOut: 10})), context.Canceled)
}

func TestCursorErrors(t *testing.T) {
	c, _ := numbered(t, 3, 100, 50, 500, 0, 1)
	s := Shape{Batch: 2, Seq: 16}
	at := epochOf(t, c, s, Cursor{})[5].After
	for name, change := range map[string]struct {
		change func(c *Corpus, at *Cursor, s *Shape)
		want   string
	}{
		"tampered": {func(_ *Corpus, at *Cursor, _ *Shape) { at.Window++ }, "checksum"},
		"other data": {func(c *Corpus, _ *Cursor, _ *Shape) { c.hash = "other" },
			"cursor belongs to data numbers, this corpus is other"},
		"other seed":   {func(c *Corpus, _ *Cursor, _ *Shape) { c.seed = 5 }, "cursor belongs to seed 1, want 5"},
		"other window": {func(_ *Corpus, _ *Cursor, s *Shape) { s.Seq = 8 }, "windows of 16 tokens"},
		"no sum":       {func(_ *Corpus, at *Cursor, _ *Shape) { *at = Cursor{Epoch: 1} }, "checksum"},
	} {
		c, _ := numbered(t, 3, 100, 50, 500, 0, 1)
		at, s := at, s
		change.change(c, &at, &s)
		require.ErrorContains(t, testutil.Err(c.Reader(s, at)), change.want, name)
	}
	s.Batch = 5
	require.NoError(t, testutil.Err(c.Reader(s, at)), "another batch goes on")
}

// A cursor with arbitrary numbers gives an error or batches, even with the right checksum. A cursor whose text was
// changed gives an error.
func TestCursorsOfAnyKind(t *testing.T) {
	c, _ := numbered(t, 3, 100, 50, 500, 0, 1)
	s := Shape{Batch: 2, Seq: 16, Documents: 4}
	good := epochOf(t, c, s, Cursor{})[5].After
	r := rand.New(rand.NewPCG(3, 3))
	text := testutil.Must(json.Marshal(good))(t)
	for range 3000 {
		at := good
		for _, field := range []*int{&at.Epoch, &at.Block, &at.Unit, &at.Document, &at.Offset, &at.Window, &at.Token} {
			if r.IntN(4) == 0 {
				*field = []int{-1, 0, 1, r.IntN(10), r.IntN(1000), 1 << 40, -1 << 63, 1<<63 - 1}[r.IntN(8)]
			}
		}
		at.Sum = at.sum()
		if c.checkCursor(at, s.Seq) == nil {
			n := 0
			for _, err := range c.batches(c.blocks(t.Context(), start(at), s.Seq), s, at) {
				if n++; err != nil || n == 3 {
					break
				}
			}
		}
		var damaged Cursor
		changed := testutil.Mutate(r, text)
		if json.Unmarshal(changed, &damaged) == nil && damaged != good && damaged != (Cursor{}) &&
			!bytes.Equal(changed, text) {
			require.Error(t, c.checkCursor(damaged, s.Seq), string(changed))
		}
	}
}

// A training step of a few milliseconds does not wait for text, not even at the end of a block.
func TestReaderIsAhead(t *testing.T) {
	path := filepath.Join(writeFiles(t, map[string][]byte{"a.txt": bytes.Repeat([]byte("some text\n"), 300_000)}), "a.txt")
	c := testutil.Must(Open(t.Context(), path, Options{HeldOut: 1000}))(t)
	c.blockTokens = 400_000
	r := testutil.Must(c.Reader(Shape{Batch: 16, Seq: 512}, Cursor{}))(t)
	defer r.Close()
	const steps = 150
	blocks := map[int]bool{}
	for range steps {
		b := testutil.Must(r.Next(t.Context()))(t)
		blocks[b.After.Block] = true
		time.Sleep(3 * time.Millisecond)
	}
	require.Greater(t, len(blocks), 1)
	require.Less(t, r.Waits(), steps/10) // none on an idle machine
	t.Logf("%d waits", r.Waits())
}

// BenchmarkReader times a Reader with all its goroutines. With -cpu 2 the metric tokens/s is for two cores.
func BenchmarkReader(b *testing.B) {
	documents := testutil.Documents(4000, 16<<10, 1)
	text := []byte(strings.Join(documents, "\n"))
	files := map[string][]byte{"large/a.txt": text, "jsonl/a.jsonl": jsonl(b, documents),
		"parquet/a.parquet": parquetBytes(b, documents, 1000),
		"gz/a.txt.gz":       text, "zst/a.txt.zst": text, "uint16/a.npy": numpyBytes(joined(documents), 2)}
	for i, d := range documents {
		files[fmt.Sprintf("small/%d.txt", i)] = []byte(d)
	}
	folder := writeFiles(b, files)
	for _, name := range []string{"large", "small", "jsonl", "parquet", "gz", "zst", "uint16"} {
		for _, shape := range []Shape{{16, 2048, 0}, {16, 2048, 64}} {
			b.Run(fmt.Sprintf("%s/documents=%d", name, shape.Documents), func(b *testing.B) {
				c := testutil.Must(Open(b.Context(), filepath.Join(folder, name), Options{HeldOut: 1 << 20}))(b)
				r := testutil.Must(c.Reader(shape, Cursor{}))(b)
				tokens := 0
				for b.Loop() {
					batch := testutil.Must(r.Next(b.Context()))(b)
					tokens += batch.Targeted
				}
				require.NoError(b, r.Close())
				b.ReportMetric(float64(tokens)/b.Elapsed().Seconds()/1e6, "Mtokens/s")
			})
		}
	}
}
