package corpus

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// The last twentieth of the text is held out if there are too few documents for a good split by hash: always for a
// single document.
func TestLastTwentieth(t *testing.T) {
	for n := range 8 {
		text := strings.Repeat("größer ", 50+n)
		folder := writeFiles(t, map[string][]byte{"a.txt": []byte(text)})
		c := open(t, folder, Options{HeldOut: 1000}, 1<<20)
		s := Shape{Batch: 1, Seq: 1 << 20}
		train := textsOf(t, epochOf(t, c, s, Cursor{}))
		batches := testutil.Must(c.HeldOut(s, 0))(t)
		held := textsOf(t, batches)
		require.Len(t, train, 1)
		require.Len(t, held, 1)
		require.Equal(t, text, train[0]+held[0])
		require.InDelta(t, len(text)/20, len(held[0]), 2)
		require.EqualValues(t, 1, c.BytesPerToken())
	}
}

// With any number of documents, the two parts share none, nothing is lost, and both parts have sensible sizes.
func TestSplitSizes(t *testing.T) {
	for n := 1; n < 120; n += 17 {
		documents := testutil.Documents(n, 100, uint64(n))
		files := map[string][]byte{}
		for i, d := range documents {
			files[fmt.Sprintf("%d.txt", i)] = []byte(d)
		}
		c := open(t, writeFiles(t, files), Options{HeldOut: 1 << 20}, 1<<20)
		s := Shape{Batch: 1, Seq: 1 << 20}
		train := textsOf(t, epochOf(t, c, s, Cursor{}))
		batches, err := c.HeldOut(s, 0)
		if err != nil {
			require.Less(t, len(strings.Join(documents, "")), heldOutPart)
			continue
		}
		held := textsOf(t, batches)
		all, part := len(strings.Join(documents, "")), len(strings.Join(held, ""))
		require.Equal(t, all-part, len(strings.Join(train, "")))
		require.LessOrEqual(t, all, 100*part+100*len("größer "))
		require.LessOrEqual(t, 2*part, all)
		if c.split.Kind == splitHash {
			require.Equal(t, sorted(documents), sorted(append(train, held...)))
		}
	}
}

// The number of tokens to collect does not change which documents are held out. Equal documents are on the same side.
func TestSplitDoesNotDependOnHeldOut(t *testing.T) {
	documents := testutil.Documents(2000, 50, 3)
	documents = append(documents, documents[:1000]...)
	folder := writeFiles(t, map[string][]byte{"a.jsonl": jsonl(t, documents)})
	s := Shape{Batch: 1, Seq: 1 << 20}
	var hash string
	var train []string
	for _, n := range []int{100, 1000, 1 << 30} {
		c := open(t, folder, Options{HeldOut: n}, 1<<20)
		got := textsOf(t, epochOf(t, c, s, Cursor{}))
		if train == nil {
			train, hash = got, c.Hash()
		}
		require.Equal(t, train, got)
		require.Equal(t, hash, c.Hash())
		batches := testutil.Must(c.HeldOut(s, 0))(t)
		held := textsOf(t, batches)
		if n == 1<<30 {
			require.Equal(t, sorted(documents), sorted(append(slices.Clone(train), held...)))
			for _, d := range held {
				require.NotContains(t, train, d)
			}
			require.InDelta(t, len(documents)/heldOutPart, len(held), 60)
		} else {
			require.LessOrEqual(t, c.held.tokens.len(), n+1)
			require.GreaterOrEqual(t, c.held.tokens.len(), n)
		}
	}
	require.NotEqual(t, hash, open(t, folder, Options{}, 1).Hash(), "nothing is held out")
}

func TestHeldOutWindows(t *testing.T) {
	folder := writeFiles(t, map[string][]byte{"a.txt": []byte(strings.Repeat("some text ", 5000))})
	c := open(t, folder, Options{HeldOut: 1 << 20}, 1<<20)
	for _, tokens := range []int{0, 1, 64, 65, 1000, 1 << 30} {
		first := testutil.Must(c.HeldOut(Shape{Batch: 2, Seq: 64}, tokens))(t)
		again := testutil.Must(c.HeldOut(Shape{Batch: 2, Seq: 64}, tokens))(t)
		require.Equal(t, first, again)
		total := 0
		for _, b := range first {
			total += b.Targeted
		}
		if tokens == 0 || tokens == 1<<30 {
			require.Equal(t, 2500, total)
		} else {
			require.InDelta(t, tokens, total, 64)
		}
	}
	require.ErrorContains(t, testutil.Err(c.HeldOut(Shape{Batch: 2, Seq: 64}, -1)), "want 0 or more")
	require.ErrorContains(t, testutil.Err(open(t, folder, Options{}, 1).HeldOut(Shape{Batch: 2, Seq: 64}, 0)),
		"nothing is held out")
}

func TestHashSeesChanges(t *testing.T) {
	base := map[string][]byte{"a.txt": []byte(strings.Repeat("text ", 10_000)), "b.txt": []byte("b")}
	hashes := map[string]string{}
	for name, change := range map[string]func(files map[string][]byte){
		"none":   func(map[string][]byte) {},
		"name":   func(f map[string][]byte) { f["c.txt"] = f["b.txt"]; delete(f, "b.txt") },
		"text":   func(f map[string][]byte) { f["b.txt"] = []byte("c") },
		"end":    func(f map[string][]byte) { f["a.txt"][49_999]++ },
		"middle": func(f map[string][]byte) { f["a.txt"][25_000]++ },
		"size":   func(f map[string][]byte) { f["a.txt"] = f["a.txt"][:49_000] },
	} {
		files := map[string][]byte{}
		for k, v := range base {
			files[k] = slices.Clone(v)
		}
		change(files)
		hashes[open(t, writeFiles(t, files), Options{HeldOut: 10}, 1).Hash()] = name
	}
	require.Len(t, hashes, 6)
}

func TestRandom(t *testing.T) {
	const n, vocab = 3<<20 + 5, 397
	c := testutil.Must(Random(n, vocab, 7))(t)
	require.Equal(t, vocab, c.Vocab())
	counts := make([]int, vocab)
	total := 0
	for _, b := range epochOf(t, c, Shape{Batch: 1, Seq: 1 << 12}, Cursor{}) {
		for i, id := range b.Tokens {
			if b.Targets[i] >= 0 {
				counts[id]++
				total++
			}
		}
	}
	require.InDelta(t, n*19/20, total, 1000)
	for _, got := range counts {
		require.InDelta(t, float64(total)/vocab, got, 6*math.Sqrt(float64(total)/vocab))
	}
	held := testutil.Must(c.HeldOut(Shape{Batch: 1, Seq: 1 << 12}, 0))(t)
	require.Greater(t, len(held), n/20/(1<<12)-1)
	other := testutil.Must(Random(n, vocab, 8))(t)
	require.NotEqual(t, c.Hash(), other.Hash())
	for _, bad := range [][2]int{{0, 2}, {1, 2}, {10, 0}, {10, -1}, {1 << 62, 5}} {
		require.ErrorContains(t, testutil.Err(Random(bad[0], bad[1], 1)), "random tokens below")
	}
}
