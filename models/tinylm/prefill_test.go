package tinylm

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// prefillCases calls f for models with all kinds of layers, in the types of the CPU: in the usual form in one of them.
func prefillCases(t *testing.T, f func(t *testing.T, r *rand.Rand, w *Weights, opts ...DecoderOption)) {
	configs := decodeConfigs()
	for i, name := range slices.Sorted(maps.Keys(configs)) {
		run := func(kind string, dt tensor.Dtype, opts ...DecoderOption) {
			t.Run(name+"/"+kind, func(t *testing.T) {
				f(t, rand.New(rand.NewPCG(3, uint64(i))), newTestWeights(t, configs[name], dt, 1), opts...)
			})
		}
		full, half := testutil.Full(t), cpu.HasBF16()
		if full || !half || i%2 == 0 {
			run("float32", tensor.Float32)
		}
		if half && (full || i%2 == 1) {
			run("bf16", tensor.Float32, DecodeOn(graph.NewCPU(2), graph.BF16))
		}
		if full {
			run("float64", tensor.Float64)
		}
	}
}

// requireSame checks that two decoders hold the same sequences, in the same bits. They have the same pages.
func requireSame(t *testing.T, want, got *Decoder) {
	t.Helper()
	for slot := range want.Slots() {
		require.Equal(t, want.Len(slot), got.Len(slot))
		require.Equal(t, want.Logits(slot), got.Logits(slot), "logits of slot %d", slot)
	}
	for i, cache := range want.caches {
		require.Equal(t, cache.Data(), got.caches[i].Data(), "cache %d", i)
	}
}

// TestPrefillInChunks: chunks of any length leave the bits of a prefill at once in logits and caches, for prompts of
// different lengths in the slots of a batch, and the tokens after them.
func TestPrefillInChunks(t *testing.T) {
	const slots, context = 3, 180
	prefillCases(t, func(t *testing.T, r *rand.Rand, w *Weights, opts ...DecoderOption) {
		for range testutil.Tries(t, 1, 10) {
			whole := testutil.Closing(NewDecoder(w, slots, context, append(opts, PrefillChunk(context))...))(t)
			d := testutil.Closing(NewDecoder(w, slots, context, append(opts, PrefillChunk(1+r.IntN(70)))...))(t)
			for i := range 5 {
				prompt := testutil.Tokens(r.Uint64(), 1+r.IntN(context-2), w.Config.Vocab)
				for _, x := range []*Decoder{whole, d} {
					require.NoError(t, x.Prefill(i%slots, prompt))
				}
			}
			requireSame(t, whole, d)
			for i := range 2 {
				for _, x := range []*Decoder{whole, d} {
					require.NoError(t, x.Step([]int32{int32(i), 2, 3}))
				}
				requireSame(t, whole, d)
			}
		}
	})
}

// TestSharedPrefix: sequences that share a prefix have the bits of separate ones, on the CPU and on a device with
// memory of its own that computes the bits of the CPU.
func TestSharedPrefix(t *testing.T) {
	prefillCases(t, func(t *testing.T, r *rand.Rand, w *Weights, opts ...DecoderOption) {
		alone := testutil.Closing(NewDecoder(w, 1, prefixContext, opts...))(t)
		sharePrefixes(t, r, alone, testutil.Closing(NewDecoder(w, prefixSlots, prefixContext,
			append(opts, PrefillChunk(100+r.IntN(900)))...))(t))
	})
	t.Run("device", func(t *testing.T) {
		w, f := newTestWeights(t, small(), tensor.Float32, 1), fakedevice.New()
		alone := testutil.Closing(NewDecoder(w, 1, prefixContext))(t)
		require.NoError(t, w.MoveTo(f))
		d := testutil.Must(NewDecoder(w, prefixSlots, prefixContext, DecodeOn(f, graph.F32)))(t)
		sharePrefixes(t, rand.New(rand.NewPCG(3, 9)), alone, d)
		require.NoError(t, d.Close())
		require.NoError(t, w.Free())
		require.Zero(t, f.MemoryInUse)
		require.Zero(t, f.Streams)
	})
}

const prefixSlots, prefixContext = 3, 1050 // three pages

// sharePrefixes checks that sequences of d with a prefix in common have the bits of alone, whichever of its pages are
// open, and also after other sequences have needed its pages. Pages that they share exist once.
func sharePrefixes(t *testing.T, r *rand.Rand, alone, d *Decoder) {
	vocab := d.weights.Config.Vocab
	for range testutil.Tries(t, 1, 4) {
		prefix := testutil.Tokens(r.Uint64(), []int{1 + r.IntN(40), 500 + r.IntN(40), 1 + r.IntN(980)}[r.IntN(3)], vocab)
		require.NoError(t, d.SharePrefix(prefix))
		for i := range 5 {
			slot, prompt := i%prefixSlots, slices.Clone(prefix)
			if i > 0 {
				prompt = append(prompt, testutil.Tokens(r.Uint64(), r.IntN(60), vocab)...)
			}
			next := []int32{-1, -1, -1}
			next[slot] = 7
			require.NoError(t, alone.Prefill(0, prompt))
			require.NoError(t, d.Prefill(slot, prompt))
			require.Equal(t, alone.Logits(0), d.Logits(slot), "sequence %d of prefix %d", i, len(prefix))
			require.NoError(t, alone.Step([]int32{7}))
			require.NoError(t, d.Step(next))
			require.Equal(t, alone.Logits(0), d.Logits(slot), "sequence %d of prefix %d", i, len(prefix))
		}
		shared := d.settledPages(len(prefix))
		require.Equal(t, d.sequences[0].pages[:shared], d.sequences[1].pages[:shared])
		for _, p := range d.prefix.pages {
			require.EqualValues(t, 1+prefixSlots, d.references[p])
		}
		for slot := range prefixSlots { // they need all pages
			require.NoError(t, d.Prefill(slot, testutil.Tokens(r.Uint64(), prefixContext, vocab)))
		}
		require.Empty(t, d.free)
		require.Empty(t, d.prefix.pages)
		for slot := range prefixSlots {
			d.Release(slot)
		}
	}
	require.NoError(t, d.SharePrefix(nil))
	require.Len(t, d.free, d.cacheSizes[0].Pages, "a page is lost")
}

// TestPrefillPlans: a longer prompt needs no further graphs, and a graph that extends a sequence has the activations of
// a chunk: besides keys and values its memory does not grow with the context.
func TestPrefillPlans(t *testing.T) {
	const chunk = 128
	c := small()
	w := newTestWeights(t, c, tensor.Float32, 1)
	bytes := map[int]int{}
	for _, context := range []int{1024, 4096} {
		// each worker has scratch of its own
		d := testutil.Closing(NewDecoder(w, 1, context, PrefillChunk(chunk), DecodeOn(graph.NewCPU(1), graph.F32)))(t)
		for _, n := range []int{3 * chunk, context} {
			require.NoError(t, d.Prefill(0, testutil.Tokens(1, n, c.Vocab)))
			require.Len(t, d.prefills, 2)
		}
		p := d.prefills[prefillShape{chunk, true}].machine.Plan()
		bytes[context] = p.Arena + p.Workspace
	}
	perToken := 4 * c.KVHeads * (c.KeyDim + c.ValueDim)
	require.Less(t, bytes[4096]-bytes[1024], 3072*4*perToken)
}

// TestDefaultPrefillChunk: without PrefillChunk a chunk is longer on a device than on the CPU, and never beyond the
// context.
func TestDefaultPrefillChunk(t *testing.T) {
	w, f := newTestWeights(t, small(), tensor.Float32, 1), fakedevice.New()
	check := func(onCPU, onDevice, context int) {
		d := testutil.Closing(NewDecoder(w, 1, context))(t)
		require.Equal(t, onCPU, d.chunk)
		require.NoError(t, w.MoveTo(f))
		d = testutil.Must(NewDecoder(w, 1, context, DecodeOn(f, graph.F32)))(t)
		require.Equal(t, onDevice, d.chunk)
		require.NoError(t, d.Close())
		require.NoError(t, w.Free())
	}
	check(DefaultPrefillChunk, DefaultPrefillChunkOnDevice, DefaultPrefillChunkOnDevice+1)
	check(90, 90, 90)
}

// TestPrefillOnDevice: a device with memory of its own and a kernel for chunks gives the bits of the CPU. One without it
// prefills whole prompts.
func TestPrefillOnDevice(t *testing.T) {
	w, f := newTestWeights(t, small(), tensor.Float32, 1), fakedevice.New()
	onCPU := testutil.Closing(NewDecoder(w, 2, 90))(t)
	require.NoError(t, w.MoveTo(f))
	tokens := testutil.Tokens(3, 70, w.Config.Vocab)
	require.NoError(t, onCPU.Prefill(1, tokens))
	for _, missing := range []string{"", "extend cache"} {
		f.Missing = missing
		d, err := NewDecoder(w, 2, 90, DecodeOn(f, graph.F32), PrefillChunk(30))
		if missing != "" {
			require.ErrorContains(t, err, "prefill in chunks of 30 tokens")
			d, err = NewDecoder(w, 2, 90, DecodeOn(f, graph.F32))
		}
		require.NoError(t, err)
		require.NoError(t, d.SharePrefix(tokens[:20])) // without a kernel for chunks it has no effect
		require.NoError(t, d.Prefill(1, tokens))
		require.Equal(t, onCPU.Logits(1), d.Logits(1))
		require.Equal(t, missing == "", d.prefix.known)
		require.Equal(t, missing == "", d.prefills[prefillShape{30, true}] != nil)
		require.NoError(t, d.Close())
	}
	require.NoError(t, w.Free())
}
