package cuda_test

import (
	"cmp"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// TestDecodeStep: a step of decoding is one replay, in which a layer has few ops. The step copies only its tokens, its
// rows and the logits, or of many logits the largest ones and their tokens. The launches of linear layers, norms,
// decoding, SwiGLU and top k overlap those before them.
func TestDecodeStep(t *testing.T) {
	c := tinylm.Base()
	c.Layers, c.Context = 2, 512
	for _, x := range []struct {
		slots, vocab int // 0: the usual one
		ops          map[string]int
	}{
		{1, 0, map[string]int{"embedding": 1, "linears": 2*c.Layers + 1, "decode": c.Layers,
			"linear with add": 2 * c.Layers}},
		{16, 0, map[string]int{"embedding": 1, "linears": 2*c.Layers + 1, "decode": c.Layers,
			"linear with add": 2 * c.Layers}},
		{64, 0, map[string]int{"embedding": 1, "rms norm": 2*c.Layers + 1, "linears": 2 * c.Layers, "decode": c.Layers,
			"linear with add": 2 * c.Layers, "linear": 1}},
		{1, 33000, map[string]int{"embedding": 1, "linears": 2*c.Layers + 1, "decode": c.Layers, "swiglu": c.Layers,
			"linear with add": 2 * c.Layers, "top k": 1}},
		{64, 5000, map[string]int{"embedding": 1, "rms norm": 2*c.Layers + 1, "linears": 2 * c.Layers, "decode": c.Layers,
			"linear with add": 2 * c.Layers, "linear": 1, "top k": 1}},
	} {
		c := c
		c.Vocab, c.GatedMLP = cmp.Or(x.vocab, c.Vocab), x.ops["swiglu"] > 0
		b, f := openWith(t, 1<<30)
		w := testutil.Must(tinylm.NewWeights(c, tensor.Float32, 1))(t)
		require.NoError(t, w.MoveTo(b))
		d := testutil.Must(tinylm.NewDecoder(w, x.slots, c.Context, tinylm.DecodeOn(b, graph.BF16)))(t)
		got := map[string]int{}
		for _, s := range d.Plan().Steps {
			if got[s.Op]++; s.Op != "cast" && s.Op != "embedding" && s.Op != "rms norm" && s.Op != "decode" && s.Op != "top k" &&
				s.Op != "swiglu" {
				require.Equal(t, "cuda few", s.Implementation, "%s of %d slots", s.Op, x.slots)
			}
		}
		delete(got, "cast") // of weights, in the first run
		require.Equal(t, x.ops, got, "%d slots", x.slots)

		next := make([]int32, x.slots)
		for i := range next {
			require.NoError(t, d.Prefill(i, []int32{1, 2, 3}))
		}
		overlapping := f.Overlaps()
		for range 2 {
			require.NoError(t, d.Step(next))
		}
		require.Equal(t, 5*c.Layers+1+x.ops["rms norm"]+2*x.ops["top k"]+x.ops["swiglu"], f.Overlaps()-overlapping,
			"%d slots: launches that overlap", x.slots)
		counted := []string{"LaunchKernelEx", "GraphLaunch", "MemcpyHtoDAsync", "MemcpyDtoHAsync", "MemcpyDtoDAsync",
			"EventSynchronize", "MemAlloc", "MemHostAlloc"}
		want := map[string]int{"GraphLaunch": 1, "MemcpyHtoDAsync": 2, "MemcpyDtoHAsync": 1 + x.ops["top k"],
			"EventSynchronize": 1}
		require.Equal(t, want, during(f, counted, func() { require.NoError(t, d.Step(next)) }), "%d slots", x.slots)
		require.NoError(t, d.Close())
		require.NoError(t, w.Free())
	}
}

// TestPrefillInChunks: each chunk of a prompt is one replay, in which RoPE runs with the linear layers. The host waits
// as often for many chunks as for few: where one graph follows another, and for the logits of the last chunk.
func TestPrefillInChunks(t *testing.T) {
	const chunk = 16
	c := tinylm.Base()
	c.Layers, c.Context = 2, 256
	b, f := openWith(t, 1<<30)
	w := testutil.Must(tinylm.NewWeights(c, tensor.Float32, 1))(t)
	require.NoError(t, w.MoveTo(b))
	d := testutil.Must(tinylm.NewDecoder(w, 2, c.Context, tinylm.DecodeOn(b, graph.BF16), tinylm.PrefillChunk(chunk)))(t)
	prefill := func(chunks int) map[string]int {
		return during(f, []string{"GraphLaunch", "MemcpyDtoHAsync", "EventSynchronize"}, func() {
			require.NoError(t, d.Prefill(1, make([]int32, chunks*chunk)))
		})
	}
	prefill(3)
	prefill(3)
	for _, n := range []int{3, 9} {
		require.Equal(t, map[string]int{"GraphLaunch": n, "EventSynchronize": 3, "MemcpyDtoHAsync": 1}, prefill(n))
	}
	for _, p := range d.PrefillPlans() {
		for _, s := range p.Steps {
			require.NotEqual(t, "rope", s.Op, "a rotation that is not fused into its linear layer")
		}
	}
	require.NoError(t, d.Close())
	require.NoError(t, w.Free())
}

// TestSharedPrefixCopiesOnDevice: a sequence that shares a prefix runs what follows it alone. The pages that are not
// full and the rings are copied within the device's memory, and the host waits for these copies once.
func TestSharedPrefixCopiesOnDevice(t *testing.T) {
	c := tinylm.Base()
	c.Layers, c.Context = 2, 700 // two pages
	b, f := openWith(t, 1<<30)
	w := testutil.Must(tinylm.NewWeights(c, tensor.Float32, 1))(t)
	require.NoError(t, w.MoveTo(b))
	d := testutil.Must(tinylm.NewDecoder(w, 3, c.Context, tinylm.DecodeOn(b, graph.BF16)))(t)
	prompt := make([]int32, 620)
	require.NoError(t, d.SharePrefix(prompt[:600])) // of which 512 fill a page
	for slot := range 2 {
		require.NoError(t, d.Prefill(slot, prompt))
	}
	counted := []string{"GraphLaunch", "MemcpyDtoDAsync", "MemcpyDtoHAsync", "EventSynchronize", "MemAlloc"}
	want := map[string]int{"GraphLaunch": 1, "MemcpyDtoDAsync": 8 * c.Layers, "MemcpyDtoHAsync": 1, "EventSynchronize": 2}
	require.Equal(t, want, during(f, counted, func() { require.NoError(t, d.Prefill(2, prompt)) }))
	require.NoError(t, d.Close())
	require.NoError(t, w.Free())
}

// BenchmarkDecodeStep measures the host's work in a step of Base(): the fake device computes nothing.
func BenchmarkDecodeStep(b *testing.B) {
	backend, _ := openWith(b, 4<<30)
	w := testutil.Must(tinylm.NewWeights(tinylm.Base(), tensor.Float32, 1))(b)
	require.NoError(b, w.MoveTo(backend))
	d := testutil.Must(tinylm.NewDecoder(w, 1, 2048, tinylm.DecodeOn(backend, graph.BF16)))(b)
	next := []int32{1}
	require.NoError(b, d.Prefill(0, next))
	for b.Loop() {
		if d.Len(0) == d.Context() {
			require.NoError(b, d.Prefill(0, next))
		}
		require.NoError(b, d.Step(next))
	}
	require.NoError(b, d.Close())
	require.NoError(b, w.Free())
}
