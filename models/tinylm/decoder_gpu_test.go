package tinylm

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/cudatest"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// decodeAll prefills the first tokens in a slot and decodes the others. It returns the logits from the end of the prompt on.
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

// TestDecoderOnGPU prefills and decodes on a GPU. In float32 the logits are those of a model on the CPU. In half precision their error
// is at most twice that of a model of the whole sequence on the GPU, plus a unit roundoff.
func TestDecoderOnGPU(t *testing.T) {
	const n = 150
	b := cudatest.Open(t)
	for name, c := range decodeConfigs() {
		w := newTestWeights(t, c, tensor.Float32, 1)
		tokens := testutil.Tokens(3, n, c.Vocab)
		want := logitsOf(t, w, tokens)
		require.NoError(t, w.MoveTo(b))
		for p, unit := range map[graph.Precision]float64{graph.F32: 0, graph.BF16: 1. / 256, graph.FP16: 1. / 2048} {
			t.Run(fmt.Sprint(name, "/", p), func(t *testing.T) {
				bound := 1e-5
				if unit > 0 {
					m := newTestModel(t, w, nil, 1, n, WithMachine(graph.WithBackend(b), graph.WithPrecision(p)))
					copy(m.Tokens(), tokens)
					require.NoError(t, m.Run())
					bound = 2*testutil.RelErr(testutil.Floats(t, testutil.Must(m.Logits())(t).Data()), want) + unit
				}
				d := testutil.Closing(NewDecoder(w, 2, n, DecodeOn(b, p)))(t)
				for first := 1; first < n; first = 2*first + 17 {
					testutil.Within(t, fmt.Sprint("logits behind ", first), decodeAll(t, d, 1, tokens, first), want[(first-1)*c.Vocab:], bound)
				}
				before := d.step.machine.Counts()
				require.NoError(t, d.Prefill(0, tokens[:9]))
				for _, next := range tokens[9:19] {
					require.NoError(t, d.Step([]int32{next, -1}))
				}
				after := d.step.machine.Counts()
				require.Equal(t, before["upload"]+20, after["upload"], "a step copies its tokens and page table alone")
				require.Zero(t, after["host"])
			})
		}
		require.NoError(t, w.Free())
	}
}

// TestDecoderOnGPUSequencesJoinAndLeave: sequences join and leave a running batch, in random slots. Each has the bits of a run in which
// the other slots take no steps.
func TestDecoderOnGPUSequencesJoinAndLeave(t *testing.T) {
	const slots, context, count = 5, 90, 20
	b, w := cudatest.Open(t), newTestWeights(t, small(), tensor.Float32, 1)
	require.NoError(t, w.MoveTo(b))
	for _, p := range []graph.Precision{graph.F32, graph.BF16} {
		d := testutil.Closing(NewDecoder(w, slots, context, DecodeOn(b, p)))(t)
		r := rand.New(rand.NewPCG(4, 5))
		var lists, wants [][]float64
		var prompts []int
		var texts [][]int32
		for range count {
			tokens := testutil.Tokens(r.Uint64(), 1+r.IntN(context), w.Config.Vocab)
			prompt := 1 + r.IntN(len(tokens))
			slot := r.IntN(slots)
			texts, prompts, wants = append(texts, tokens), append(prompts, prompt), append(wants, decodeAll(t, d, slot, tokens, prompt))
			d.Release(slot)
		}
		lists = make([][]float64, count)
		running, at, begun, left := [slots]int{-1, -1, -1, -1, -1}, [slots]int{}, 0, 0
		for left < count {
			next := make([]int32, slots)
			for i := range next {
				next[i] = -1
				switch s := running[i]; {
				case s >= 0 && at[i] == len(texts[s]):
					d.Release(i)
					running[i] = -1
					left++
				case s < 0 && begun < count && r.IntN(3) == 0:
					running[i], at[i] = begun, prompts[begun]
					require.NoError(t, d.Prefill(i, texts[begun][:prompts[begun]]))
					lists[begun] = testutil.Convert[float64](d.Logits(i))
					begun++
				case s >= 0 && r.IntN(5) > 0:
					next[i] = texts[s][at[i]]
				}
			}
			require.NoError(t, d.Step(next))
			for i, token := range next {
				if s := running[i]; token >= 0 {
					lists[s], at[i] = append(lists[s], testutil.Convert[float64](d.Logits(i))...), at[i]+1
				}
			}
		}
		require.Equal(t, wants, lists, "%v", p)
		require.Len(t, d.free, d.cacheSizes.Pages, "a page is lost")
		require.NoError(t, d.Close())
	}
	require.NoError(t, w.Free())
}
