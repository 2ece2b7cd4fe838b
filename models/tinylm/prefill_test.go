package tinylm

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// prefillCases calls f for models with all kinds of layers, in all types of the CPU.
func prefillCases(t *testing.T, f func(t *testing.T, r *rand.Rand, w *Weights, opts ...DecoderOption)) {
	for name, c := range decodeConfigs() {
		run := func(kind string, dt tensor.Dtype, opts ...DecoderOption) {
			t.Run(name+"/"+kind, func(t *testing.T) {
				f(t, rand.New(rand.NewPCG(3, uint64(len(name)))), newTestWeights(t, c, dt, 1), opts...)
			})
		}
		run("float32", tensor.Float32)
		run("float64", tensor.Float64)
		if cpu.HasBF16() {
			run("bf16", tensor.Float32, DecodeOn(graph.NewCPU(2), graph.BF16))
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
	require.Equal(t, want.cacheBytes, got.cacheBytes)
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
