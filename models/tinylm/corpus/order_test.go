package corpus

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm/tokenizer"
)

// memorySource yields documents of numbers from memory, by unit.
type memorySource [][][]int32

func (s memorySource) documents(_ context.Context, u unit) documents {
	return func(yield func(document, error) bool) {
		for _, ids := range s[u.file] {
			if !yield(document{tokens: ids, isTokens: true}, nil) {
				return
			}
		}
	}
}

// numbered returns a corpus in which no token except the separator occurs twice. Token t of document d has the id
// ids[d][t].
func numbered(t testing.TB, units, documents, most, block, heldOut int, seed uint64) (c *Corpus, ids [][]int32) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 5))
	source := make(memorySource, units)
	next := int32(1)
	for range documents {
		d := make([]int32, 1+r.IntN(most))
		for i := range d {
			d[i] = next
			next++
		}
		u := r.IntN(units)
		source[u] = append(source[u], d)
	}
	c = &Corpus{name: "numbers", seed: seed, source: source, Tokenizer: tokenizer.Numbers(int(next), 0),
		blockTokens: block, hash: "numbers"}
	for u := range source {
		c.units = append(c.units, unit{file: u})
		ids = append(ids, source[u]...)
	}
	require.NoError(t, c.scan(t.Context(), heldOut, false))
	return c, ids
}

type orderCase struct {
	units, documents, most, block, heldOut int
	shape                                  Shape
}

func (o orderCase) String() string {
	return fmt.Sprintf("%d units, %d documents up to %d, blocks of %d, %d held out, %v", o.units, o.documents, o.most,
		o.block, o.heldOut, o.shape)
}

func orderCases() []orderCase {
	cases := []orderCase{
		{1, 1, 1, 1 << 20, 0, Shape{1, 1, 0}},
		{1, 1, 1000, 64, 0, Shape{1, 16, 1}},
		{1, 2, 50, 1 << 20, 0, Shape{4, 512, 4}},
		{3, 500, 1, 100, 0, Shape{2, 16, 2}},
	}
	r := rand.New(rand.NewPCG(9, 9))
	for range 60 {
		o := orderCase{1 + r.IntN(9), 1 + r.IntN(300), 1 + r.IntN(150), 16 << r.IntN(10), 0,
			Shape{1 + r.IntN(5), 1 + r.IntN(64), 0}}
		if r.IntN(2) == 0 {
			o.shape.Documents = o.shape.Batch + r.IntN(o.shape.Batch*(o.shape.Seq-1)+1)
		}
		if r.IntN(2) == 0 {
			o.heldOut = 1 + r.IntN(500)
		}
		cases = append(cases, o)
	}
	return cases
}

// targetsOf returns the targets of the first epoch by token. It checks that no token except the separator occurs twice.
func targetsOf(t *testing.T, batches []*Batch) map[int32]int32 {
	t.Helper()
	targets := map[int32]int32{}
	for _, b := range batches {
		targeted := 0
		for i, token := range b.Tokens {
			if b.Targets[i] >= 0 {
				targeted++
			}
			if token > 0 {
				if _, ok := targets[token]; ok {
					require.Fail(t, "a token comes twice")
				}
				targets[token] = b.Targets[i]
			}
		}
		require.Equal(t, targeted, b.Targeted)
		require.Positive(t, targeted)
	}
	return targets
}

// wholeEpoch returns the batches of the first epoch. Batches have one row, so that no batch has rows of the next epoch.
func wholeEpoch(t *testing.T, c *Corpus, s Shape) []*Batch {
	t.Helper()
	s.Documents = (s.Documents + s.Batch - 1) / s.Batch
	s.Batch = 1
	return epochOf(t, c, s, Cursor{})
}

// An epoch has each training document once. Each token of a document predicts the next one, and the last predicts the
// separator. If the end of a block cuts a document, one of these targets is missing. No held-out token occurs.
func TestEpochHasEachDocumentOnce(t *testing.T) {
	for seed, o := range orderCases() {
		t.Run(o.String(), func(t *testing.T) {
			c, _ := numbered(t, o.units, o.documents, o.most, o.block, o.heldOut, uint64(seed))
			batches := wholeEpoch(t, c, o.shape)
			blocks := 1
			for i := range batches {
				if i > 0 && batches[i].After.Block != batches[i-1].After.Block {
					blocks++
				}
			}
			targets, held := targetsOf(t, batches), heldTokens(t, c)
			missing, heldOut := 0, 0
			for u, unit := range c.source.(memorySource) {
				for n, ids := range unit {
					d := document{tokens: ids, isTokens: true}
					train, rest := c.split.cut(u, n, d, false).tokens, c.split.cut(u, n, d, true).tokens
					require.Equal(t, ids, append(slices.Clone(train), rest...))
					for i, id := range train {
						want := int32(0)
						if i+1 < len(train) {
							want = train[i+1]
						}
						switch got, ok := targets[id]; {
						case !ok || got == -1:
							missing++
						case got != want:
							require.Fail(t, "another target", "%d: got %d, want %d", id, got, want)
						}
						if held[id] {
							require.Fail(t, "a token to train on is held out")
						}
					}
					for _, id := range rest {
						if _, ok := targets[id]; ok {
							require.Fail(t, "a held-out token is trained on")
						}
						if held[id] {
							heldOut++
						}
					}
				}
			}
			require.LessOrEqual(t, missing, 2*(blocks-1)) // a piece of one token that is alone in a window is dropped
			require.Equal(t, len(held), heldOut)
			require.LessOrEqual(t, heldOut, o.heldOut)
		})
	}
}

// heldTokens returns the collected tokens of held-out documents.
func heldTokens(t *testing.T, c *Corpus) map[int32]bool {
	held := map[int32]bool{}
	if c.held == nil || c.held.tokens.len() < 2 {
		return held
	}
	batches := testutil.Must(c.HeldOut(Shape{Batch: 1, Seq: c.held.tokens.len()}, 0))(t)
	for _, b := range batches {
		for _, id := range b.Tokens {
			if id > 0 {
				held[id] = true
			}
		}
	}
	return held
}

// Packed documents lie where CuSeqlens says: the tokens of a document follow one another, and predict no token outside
// of it.
func TestPackedDocuments(t *testing.T) {
	for seed, o := range orderCases() {
		if o.shape.Documents == 0 {
			continue
		}
		t.Run(o.String(), func(t *testing.T) {
			c, ids := numbered(t, o.units, o.documents, o.most, o.block, o.heldOut, uint64(seed))
			of := map[int32]int{} // document of a token
			for d := range ids {
				for _, id := range ids[d] {
					of[id] = d
				}
			}
			batches := epochOf(t, c, o.shape, Cursor{})
			if held, err := c.HeldOut(o.shape, 0); err == nil {
				batches = append(batches, held...)
			}
			for _, b := range batches {
				require.Len(t, b.CuSeqlens, o.shape.Documents+1)
				require.EqualValues(t, 0, b.CuSeqlens[0])
				require.EqualValues(t, len(b.Tokens), b.CuSeqlens[o.shape.Documents])
				require.True(t, slices.IsSorted(b.CuSeqlens))
				for row := range o.shape.Batch {
					require.Contains(t, b.CuSeqlens, int32((row+1)*o.shape.Seq))
				}
				for i := range o.shape.Documents {
					from, to := b.CuSeqlens[i], b.CuSeqlens[i+1]
					for j := from; j < to; j++ {
						token, target := b.Tokens[j], b.Targets[j]
						ok := token > 0 || target == -1
						ok = ok && (token == 0 || j == from || b.Tokens[j-1]+1 == token && of[b.Tokens[from]] == of[token])
						ok = ok && (target <= 0 || of[token] == of[target])
						if !ok {
							require.Fail(t, "token of another document", "token %d of %d to %d: %d -> %d", j, from, to, token, target)
						}
					}
				}
			}
		})
	}
}

// A reader that continues from any cursor, saved as JSON, returns the batches of the first reader.
func TestResume(t *testing.T) {
	for seed, o := range orderCases() {
		t.Run(o.String(), func(t *testing.T) {
			c, _ := numbered(t, o.units, o.documents, o.most, o.block, o.heldOut, uint64(seed))
			var all []*Batch
			for b, err := range c.batches(c.blocks(t.Context(), Cursor{}, o.shape.Seq), o.shape, Cursor{}) {
				require.NoError(t, err)
				if all = append(all, b); len(all) == 40 || b.After.Epoch > 2 {
					break
				}
			}
			for i, b := range all {
				text := testutil.Must(json.Marshal(b.After))(t)
				var at Cursor
				require.NoError(t, json.Unmarshal(text, &at))
				require.NoError(t, c.checkCursor(at, o.shape.Seq))
				n := i + 1
				for got, err := range c.batches(c.blocks(t.Context(), start(at), o.shape.Seq), o.shape, at) {
					require.NoError(t, err)
					if n == len(all) || n > i+4 {
						break
					}
					require.Equal(t, all[n], got)
					n++
				}
			}
		})
	}
}

func TestEpochsDiffer(t *testing.T) {
	c, _ := numbered(t, 3, 200, 100, 4096, 0, 1)
	other, _ := numbered(t, 3, 200, 100, 4096, 0, 1)
	other.seed = 2
	s := Shape{Batch: 1, Seq: 64}
	first := epochOf(t, c, s, Cursor{})
	second := epochOf(t, c, s, first[len(first)-1].After)
	require.Equal(t, tokensOf(first), tokensOf(epochOf(t, c, s, Cursor{})))
	require.NotEqual(t, tokensOf(first), tokensOf(second))
	require.NotEqual(t, tokensOf(first), tokensOf(epochOf(t, other, s, Cursor{})))
	require.Len(t, targetsOf(t, first), len(targetsOf(t, second)))
}

func tokensOf(batches []*Batch) []int32 {
	var all []int32
	for _, b := range batches {
		all = append(all, b.Tokens...)
	}
	return all
}
