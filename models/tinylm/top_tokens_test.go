package tinylm

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// manyTokens returns a model with so many tokens that a device chooses the largest logits of a step of 5 sequences.
func manyTokens() Config {
	c := small()
	c.Vocab, c.Layers = 1+fewLogits/5, 1
	return c
}

// onDevice returns decoders of one model with some slots of 60 tokens, on the CPU and on a device.
func onDevice(t *testing.T, slots int) (host, device *Decoder, f *fakedevice.Backend) {
	w, f := newTestWeights(t, manyTokens(), tensor.Float32, 1), fakedevice.New()
	host = testutil.Closing(NewDecoder(w, slots, 60))(t)
	require.NoError(t, w.MoveTo(f))
	device = testutil.Must(NewDecoder(w, slots, 60, DecodeOn(f, graph.F32)))(t)
	require.NotNil(t, device.step.top)
	t.Cleanup(func() {
		require.NoError(t, device.Close())
		require.NoError(t, w.Free())
	})
	return host, device, f
}

// TestDecoderLogitsOnDevice: on a device that chooses the largest logits, Logits has those of the CPU in the slots that
// are asked for, in any order, and also after steps that skip a slot and prefills of others.
func TestDecoderLogitsOnDevice(t *testing.T) {
	const slots = 5
	host, device, f := onDevice(t, slots)
	r := rand.New(rand.NewPCG(1, 2))
	next := make([]int32, slots)
	for range 60 {
		for slot := range slots {
			next[slot] = -1
			switch n := device.Len(slot); {
			case n == 60 || n > 0 && r.IntN(20) == 0:
				host.Release(slot)
				device.Release(slot)
			case n == 0:
				prompt := testutil.Tokens(r.Uint64(), 1+r.IntN(20), host.vocab())
				require.NoError(t, host.Prefill(slot, prompt))
				require.NoError(t, device.Prefill(slot, prompt))
			case r.IntN(4) > 0:
				next[slot] = int32(r.IntN(host.vocab()))
			}
		}
		require.NoError(t, host.Step(next))
		require.NoError(t, device.Step(next))
		if next[2] == -1 {
			require.Error(t, device.Step([]int32{-1, -1, 1 << 30, -1, -1}), "a token beyond the vocabulary changes nothing")
		}
		for _, slot := range r.Perm(slots)[:r.IntN(slots+1)] {
			if device.Len(slot) > 0 {
				require.Equal(t, host.Logits(slot), device.Logits(slot))
			}
		}
	}
	for slot := range slots {
		device.Release(slot)
		require.NoError(t, device.Prefill(slot, []int32{1, 2, 3}))
	}
	copies := func(call func()) int {
		before := f.Downloads
		call()
		return f.Downloads - before
	}
	step := func() { require.NoError(t, device.Step(make([]int32, slots))) }
	require.Equal(t, 2, copies(step), "largest logits and their tokens")
	require.Equal(t, 2, copies(func() { require.NoError(t, device.fetch(0, 1, 3)) }), "adjoining rows at once")
	require.Zero(t, copies(func() { device.Logits(1) }))
	require.Equal(t, 1, copies(func() { device.Logits(2) }))
}

// TestSamplerOnDevice: sequences with all kinds of sampling have the tokens of the CPU.
func TestSamplerOnDevice(t *testing.T) {
	how := []Sampling{{}, {Temperature: 1, TopK: 40}, {Temperature: 0.8, TopK: 64, TopP: 0.9}, {Temperature: 1, TopK: 65},
		{Temperature: 1, TopP: 0.5}, {RepetitionPenalty: 1.2}, {Temperature: 2, TopK: 20, RepetitionPenalty: 1.5},
		{RepetitionPenalty: 0.8}}
	host, device, f := onDevice(t, len(how))
	var got [2]map[int][]int32
	for i, d := range []*Decoder{host, device} {
		s := testutil.Must(NewSampler(d, nil))(t)
		for j, sampling := range how {
			sampling.MaxTokens, sampling.Seed = 80, uint64(j)
			testutil.Must(s.Add([]int32{int32(j), 7, 9}, sampling))(t)
		}
		got[i], _, _ = collect(t, s)
	}
	require.Equal(t, got[0], got[1])
	require.Positive(t, f.Replays)
}

// TestLogitsOfFailedStep: after a step that has failed on the device, the logits that it has overwritten are an error
// until the slot has others.
func TestLogitsOfFailedStep(t *testing.T) {
	_, device, f := onDevice(t, 5)
	for slot := range 5 {
		require.NoError(t, device.Prefill(slot, []int32{1, 2, 3}))
	}
	next := make([]int32, 5)
	require.NoError(t, device.Step(next))
	f.FailAt = f.Calls + 3
	require.ErrorContains(t, device.Step(next), f.Failed)
	require.NotEmpty(t, f.Failed)
	require.Error(t, device.fetch(1))
	require.NoError(t, device.Step(next))
	require.NotNil(t, device.Logits(1))
	require.Equal(t, 5, device.Len(1))

	f.FailAt = f.Calls + 1
	require.Nil(t, device.Logits(2))
	require.ErrorContains(t, device.Step(next), f.Failed)
	require.ErrorContains(t, device.Prefill(0, []int32{1}), f.Failed)
}
