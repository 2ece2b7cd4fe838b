package tinylm

import (
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// hashDecoder has the contract of a Decoder and checks that its caller keeps it. Its logits are random and depend only
// on the tokens of a slot.
type hashDecoder struct {
	t        testing.TB
	context  int
	tokens   int // of the vocabulary
	best     int // tokens that it chooses; 0: none
	seqs     [][]int32
	prefills [][]int32
	steps    int
	fail     error           // error of the next step or prefill
	change   func([]float32) // changes logits, if not nil
}

func newHashDecoder(t testing.TB, slots, context, vocab int) *hashDecoder {
	return &hashDecoder{t: t, context: context, tokens: vocab, seqs: make([][]int32, slots)}
}

func (d *hashDecoder) Slots() int       { return len(d.seqs) }
func (d *hashDecoder) Context() int     { return d.context }
func (d *hashDecoder) Len(slot int) int { return len(d.seqs[slot]) }
func (d *hashDecoder) Release(slot int) { d.seqs[slot] = nil }

func (d *hashDecoder) failure() (err error) {
	err, d.fail = d.fail, nil
	return err
}

func (d *hashDecoder) Prefill(slot int, tokens []int32) error {
	require.NotEmpty(d.t, tokens)
	require.LessOrEqual(d.t, len(tokens), d.context)
	if err := d.failure(); err != nil {
		return err
	}
	d.seqs[slot] = slices.Clone(tokens)
	d.prefills = append(d.prefills, d.seqs[slot])
	return nil
}

func (d *hashDecoder) SharePrefix([]int32) error { return nil }

func (d *hashDecoder) Step(tokens []int32) error {
	require.Len(d.t, tokens, len(d.seqs))
	if err := d.failure(); err != nil {
		return err
	}
	for slot, id := range tokens {
		if id >= 0 {
			require.NotEmpty(d.t, d.seqs[slot], "a free slot")
			require.Less(d.t, len(d.seqs[slot]), d.context, "a full one")
			d.seqs[slot] = append(d.seqs[slot], id)
		}
	}
	d.steps++
	return nil
}

func (d *hashDecoder) fetch(...int) error { return nil }

func (d *hashDecoder) vocab() int { return d.tokens }

// top returns the d.best largest logits.
func (d *hashDecoder) top(slot int) (ids []int32, largest []float32) {
	if d.best == 0 {
		return nil, nil
	}
	ids = make([]int32, d.best)
	logits := d.Logits(slot)
	cpu.Top(ids, logits)
	for _, id := range ids {
		largest = append(largest, logits[id])
	}
	return ids, largest
}

func (d *hashDecoder) Logits(slot int) []float32 {
	require.NotEmpty(d.t, d.seqs[slot], "a free slot")
	h := fnv.New64a()
	require.NoError(d.t, binary.Write(h, binary.LittleEndian, d.seqs[slot]))
	r := rand.New(rand.NewPCG(h.Sum64(), 1))
	logits := make([]float32, d.tokens)
	for i := range logits {
		logits[i] = float32(2 * r.NormFloat64())
	}
	if d.change != nil {
		d.change(logits)
	}
	return logits
}

// ofHashes returns a sampler on a hashDecoder. The tokens of its vocabulary are the letters from "A" on.
func ofHashes(t testing.TB, slots, context int) (*Sampler, *hashDecoder) {
	d, v := newHashDecoder(t, slots, context, 26), pieces{}
	for i := range 26 {
		v = append(v, string(rune('A'+i)))
	}
	return testutil.Must(newSampler(d, v))(t), d
}

// collect runs s to its end and returns tokens, texts and ends by sequence.
func collect(t testing.TB, s *Sampler) (ids map[int][]int32, texts map[int]string, ends map[int]End) {
	ids, texts, ends = map[int][]int32{}, map[int]string{}, map[int]End{}
	for x, err := range s.Tokens() {
		require.NoError(t, err)
		require.Equal(t, EndNone, ends[x.Seq], "behind its end")
		ids[x.Seq] = append(ids[x.Seq], x.ID)
		texts[x.Seq] += string(x.Text)
		ends[x.Seq] = x.End
	}
	return ids, texts, ends
}

// alone returns the tokens of a sequence by a plain loop: for each token it prefills all tokens that should be in the
// context.
func alone(t testing.TB, d *hashDecoder, prompt []int32, how Sampling, n int) (ids []int32) {
	r := rand.New(rand.NewPCG(how.Seed, 3))
	cache, all := slices.Clone(prompt[max(0, len(prompt)-d.context):]), slices.Clone(prompt)
	for range n {
		if len(cache) > d.context {
			cache = slices.Clone(cache[len(cache)-max(1, d.context/2):])
		}
		own := newHashDecoder(t, 1, d.context, d.tokens)
		require.NoError(t, own.Prefill(0, cache))
		_, _, id := sortedPick(own.Logits(0), how, all, r.Float64())
		ids, cache, all = append(ids, id), append(cache, id), append(all, id)
	}
	return ids
}

func heapBytes() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func argmax(x []float32) int { return slices.Index(x, slices.Max(x)) }
