package tinylm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// decodeConfigs returns models with all kinds of layers.
func decodeConfigs() map[string]Config {
	mlp, softmax, dense, without, wide, long, mixed := small(), small(), small(), small(), small(), small(), small()
	wide.Window = 1 << 40
	long.BlockLen, long.SelectBlock = 1<<40, 1<<24
	without.Without = decode.BranchesOf(decode.Selected)
	mlp.Phi, mlp.PhiHidden = nn.PhiMLP, 12
	softmax.GateActivation, softmax.KVHeads, softmax.ValueDim = nn.GateSoftmax, 1, 6
	dense.Attention = Dense
	mixed.Attention, mixed.Layers = "window,nsa,dense", 4
	return map[string]Config{"mean": small(), "mlp": mlp, "softmax": softmax, "dense": dense, "without selected": without,
		"wide window": wide, "long blocks": long, "mixed": mixed}
}

// logitsOf returns the logits [S,V] that a Model computes for tokens.
func logitsOf(t *testing.T, w *Weights, tokens []int32) []float64 {
	m := newTestModel(t, w, nil, 1, len(tokens))
	copy(m.Tokens(), tokens)
	require.NoError(t, m.Run())
	return testutil.Floats(t, testutil.Must(m.Logits())(t).Data())
}

// decodeAll prefills the first tokens in a slot and decodes the others. It returns the logits from the end of the
// prompt on.
func decodeAll(t *testing.T, d *Decoder, slot int, tokens []int32, first int) (logits []float64) {
	next := make([]int32, d.Slots())
	for i := range next {
		next[i] = -1
	}
	require.NoError(t, d.Prefill(slot, tokens[:first]))
	logits = append(logits, testutil.Convert[float64](d.Logits(slot))...)
	for _, token := range tokens[first:] {
		next[slot] = token
		require.NoError(t, d.Step(next))
		logits = append(logits, testutil.Convert[float64](d.Logits(slot))...)
	}
	return logits
}

// TestDecoderMatchesModel prefills the first tokens of a sequence, with many lengths of the prompt, and decodes the
// others. The logits of every token are those of a Model of the whole sequence.
func TestDecoderMatchesModel(t *testing.T) {
	const n = 150
	for name, c := range decodeConfigs() {
		for _, dt := range []tensor.Dtype{tensor.Float32, tensor.Float64} {
			t.Run(fmt.Sprint(name, "/", dt), func(t *testing.T) {
				w := newTestWeights(t, c, dt, 1)
				tokens := testutil.Tokens(3, n, c.Vocab)
				want := logitsOf(t, w, tokens)
				d := testutil.Closing(NewDecoder(w, 2, n))(t)
				for first := 1; first < n; first += 1 + first {
					testutil.Within(t, fmt.Sprint("logits behind ", first), decodeAll(t, d, 1, tokens, first),
						want[(first-1)*c.Vocab:], 1e-5)
					require.Equal(t, n, d.Len(1))
				}
				require.Zero(t, d.Len(0))
			})
		}
	}
}

// TestCachesOfLongBlocks: a window and blocks beyond the context take no more memory than those of the context, or of a
// page.
func TestCachesOfLongBlocks(t *testing.T) {
	for _, context := range []int{1, 100, 2000} {
		page := max(context, pageTokens)/4*4 + 4 // the stride is 4
		for _, change := range []func(c *Config, long bool){
			func(c *Config, long bool) { c.Window = map[bool]int{false: context, true: math.MaxInt}[long] },
			func(c *Config, long bool) { c.BlockLen = map[bool]int{false: page, true: math.MaxInt &^ 3}[long] },
			func(c *Config, long bool) { c.SelectBlock = map[bool]int{false: page, true: 1 << 24}[long] },
		} {
			whole, long := small(), small()
			change(&whole, false)
			change(&long, true)
			require.Equal(t, testutil.Must(whole.CacheBytes(3, context))(t), testutil.Must(long.CacheBytes(3, context))(t))
		}
	}
}

// TestDecoderOnDevice: a device with memory of its own gives the bits of the CPU. Caches stay there, and a step is
// replayed.
func TestDecoderOnDevice(t *testing.T) {
	w, f := newTestWeights(t, small(), tensor.Float32, 1), fakedevice.New()
	require.ErrorContains(t, testutil.Err(NewDecoder(w, 1, 9, DecodeOn(f, graph.F32))), "the weights are on the host")
	onCPU := testutil.Closing(NewDecoder(w, 2, 90))(t)
	require.NoError(t, w.MoveTo(f))
	d, err := NewDecoder(w, 2, 90, DecodeOn(f, graph.F32))
	require.NoError(t, err)
	tokens := testutil.Tokens(3, 90, w.Config.Vocab)
	for _, x := range []*Decoder{onCPU, d} {
		require.NoError(t, x.Prefill(1, tokens[:20]))
	}
	uploads := 0
	for i, next := range tokens[20:] {
		for _, x := range []*Decoder{onCPU, d} {
			require.NoError(t, x.Step([]int32{-1, next}))
		}
		require.Equal(t, onCPU.Logits(1), d.Logits(1))
		if i == 2 {
			uploads = f.Uploads
		}
	}
	require.Equal(t, 2*(len(tokens)-23), f.Uploads-uploads, "a step copies its tokens and page table alone")
	require.Positive(t, f.Replays)
	require.NoError(t, d.Close())
	require.NoError(t, w.Free())
	require.Zero(t, f.MemoryInUse)
}

// TestDecoderSequencesJoinAndLeave: sequences of random lengths join and leave a running batch, in random slots. Each
// has the bits of a run by itself.
func TestDecoderSequencesJoinAndLeave(t *testing.T) {
	w := newTestWeights(t, small(), tensor.Float32, 1)
	joinAndLeave(t, testutil.Closing(NewDecoder(w, 1, 90))(t), testutil.Closing(NewDecoder(w, 5, 90))(t), 60)
	if in := DecodeOn(graph.NewCPU(2), graph.BF16); cpu.HasBF16() {
		joinAndLeave(t, testutil.Closing(NewDecoder(w, 1, 90, in))(t), testutil.Closing(NewDecoder(w, 5, 90, in))(t), 20)
	}
}

// TestDecoderInBF16: in bf16 on the CPU the logits of a decoder are within a few roundings of those in float32, but for
// the tokens that select other blocks, of nearly the same scores.
func TestDecoderInBF16(t *testing.T) {
	if !cpu.HasBF16() {
		t.Skip("this processor has no AVX512_BF16")
	}
	const n = 150
	for name, c := range decodeConfigs() {
		w, tokens := newTestWeights(t, c, tensor.Float32, 1), testutil.Tokens(3, n, c.Vocab)
		want := logitsOf(t, w, tokens)
		d := testutil.Closing(NewDecoder(w, 2, n, DecodeOn(graph.NewCPU(2), graph.BF16)))(t)
		for first := 1; first < n; first = 2*first + 17 {
			others, got := 0, decodeAll(t, d, 1, tokens, first)
			for i, logits := range slices.Collect(slices.Chunk(got, c.Vocab)) {
				off := testutil.RelErr(logits, want[(first-1+i)*c.Vocab:][:c.Vocab])
				require.Positive(t, off)
				if off > 1./32 {
					others++
				}
			}
			require.LessOrEqual(t, others, n/15, "%s, logits behind %d", name, first)
		}
	}
}

// joinAndLeave decodes random sequences one by one with alone, then at once with batch.
func joinAndLeave(t *testing.T, alone, batch *Decoder, count int) {
	r := rand.New(rand.NewPCG(4, 5))
	sequences := make([]struct {
		tokens    []int32
		prompt    int
		want, got []float64 // logits from the end of the prompt on
	}, count)
	for i := range sequences {
		s := &sequences[i]
		s.tokens = testutil.Tokens(r.Uint64(), 1+r.IntN(batch.Context()), batch.weights.Config.Vocab)
		s.prompt = 1 + r.IntN(len(s.tokens))
		slot := r.IntN(alone.Slots())
		s.want = decodeAll(t, alone, slot, s.tokens, s.prompt)
		alone.Release(slot)
	}
	running, next := make([]int, batch.Slots()), make([]int32, batch.Slots()) // the sequence of a slot, its next token
	for begun, left := 0, 0; left < count; {
		for i := range next {
			next[i] = -1
			switch s := &sequences[running[i]]; {
			case batch.Len(i) == 0 && begun < count && r.IntN(3) == 0:
				running[i], s = begun, &sequences[begun]
				require.NoError(t, batch.Prefill(i, s.tokens[:s.prompt]))
				s.got = testutil.Convert[float64](batch.Logits(i))
				begun++
			case batch.Len(i) == 0:
			case batch.Len(i) == len(s.tokens):
				require.Equal(t, s.want, s.got)
				batch.Release(i)
				left++
			case r.IntN(5) > 0:
				next[i] = s.tokens[batch.Len(i)]
			}
		}
		require.NoError(t, batch.Step(next))
		for i, token := range next {
			if s := &sequences[running[i]]; token >= 0 {
				s.got = append(s.got, testutil.Convert[float64](batch.Logits(i))...)
			}
		}
	}
	require.Len(t, batch.free, batch.cacheSizes[0].Pages, "a page is lost")
}

func TestDecoderErrors(t *testing.T) {
	w := newTestWeights(t, small(), tensor.Float32, 1)
	d := testutil.Closing(NewDecoder(w, 2, 20))(t)
	tokens := testutil.Tokens(1, 21, w.Config.Vocab)
	require.ErrorContains(t, d.Prefill(2, tokens[:3]), "tinylm: prefill of 3 tokens: slot 2")
	require.ErrorContains(t, d.Prefill(0, nil), "no tokens")
	require.ErrorIs(t, d.Prefill(0, tokens), ErrContextFull)
	require.ErrorContains(t, d.Step([]int32{-1, 3}), "tinylm: decode: slot 1 is free")
	require.ErrorContains(t, d.Step([]int32{-1}), "1 tokens")

	require.NoError(t, d.Prefill(0, tokens[:20]))
	require.NoError(t, d.Prefill(1, tokens[:4]))
	before := append([]float32(nil), d.Logits(1)...)
	require.ErrorIs(t, d.Step([]int32{1, 1}), ErrContextFull)
	require.Error(t, d.Step([]int32{-1, 9999}))
	require.Equal(t, 4, d.Len(1))
	require.Equal(t, before, d.Logits(1))
	require.ErrorContains(t, d.Prefill(1, []int32{1, 9999}), "token 1 is 9999")
	require.Equal(t, 4, d.Len(1))
	require.Equal(t, before, d.Logits(1))
	for _, x := range [][2]int{{0, 5}, {5, 0}, {1 << 20, 1 << 20}} {
		require.Error(t, testutil.Err(NewDecoder(w, x[0], x[1])), x)
	}
	for _, b := range []graph.Backend{nil, (*cuda.Backend)(nil)} {
		require.ErrorContains(t, testutil.Err(NewDecoder(w, 1, 1, DecodeOn(b, graph.F32))), "the backend is nil")
	}
	require.ErrorContains(t, testutil.Err(NewDecoder(w, 1, 1, DecodeOn(graph.NewCPU(1), graph.FP16))),
		"cpu computes in float32")
	require.ErrorIs(t, testutil.Err(NewDecoder(nil, 1, 1)), errNoWeights)

	closed := testutil.Must(NewDecoder(w, 1, 20))(t)
	s := testutil.Must(NewSampler(closed, nil))(t)
	testutil.Must(s.Add(tokens[:3], Sampling{}))(t)
	require.NoError(t, closed.Close())
	require.NoError(t, closed.Close())
	require.ErrorIs(t, closed.Prefill(0, tokens[:1]), errDecoderClosed)
	require.ErrorIs(t, closed.Step([]int32{-1}), errDecoderClosed)
	require.Empty(t, closed.Plan().Steps)
	for token, err := range s.Tokens() {
		if err != nil {
			require.Equal(t, -1, token.Seq)
			require.ErrorIs(t, err, errDecoderClosed)
		}
	}
}

// TestCacheBytesRefuses: sizes that a decoder refuses have no caches either.
func TestCacheBytesRefuses(t *testing.T) {
	with := func(change func(*Config)) Config {
		c := small()
		change(&c)
		return c
	}
	for message, c := range map[string]Config{
		"vocab is 0":              {},
		"layers is -1":            with(func(c *Config) { c.Layers = -1 }),
		`attention is "x"`:        with(func(c *Config) { c.Attention = "x" }),
		"selection block l' is 0": with(func(c *Config) { c.SelectBlock = 0 }),
		"selection block l' is 9223372036854775806": with(func(c *Config) { c.SelectBlock = math.MaxInt - 1 }),
	} {
		require.ErrorContains(t, testutil.Err(c.CacheBytes(1, 64)), message)
	}
	for _, x := range [][2]int{{0, 5}, {5, 0}, {1, -5}, {1, math.MaxInt}} {
		require.Error(t, testutil.Err(small().CacheBytes(x[0], x[1])), x)
	}
}

func TestDecoderAllocatesNothing(t *testing.T) {
	w := newTestWeights(t, small(), tensor.Float32, 1)
	d := testutil.Closing(NewDecoder(w, 1, 1000, DecodeOn(graph.NewCPU(1), graph.F32)))(t)
	require.NoError(t, d.Prefill(0, []int32{1, 2, 3}))
	next := []int32{5}
	for range 10 {
		require.NoError(t, d.Step(next))
	}
	require.Zero(t, testing.AllocsPerRun(50, func() {
		if err := d.Step(next); err != nil {
			panic(err)
		}
	}))
}
