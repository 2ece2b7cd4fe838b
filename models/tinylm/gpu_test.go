package tinylm

import (
	_ "embed"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/cuda/cudatest"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestGoldenLadderOnGPU compares logits, loss, gradients, and the losses of ten steps with the goldens, in float32.
func TestGoldenLadderOnGPU(t *testing.T) { climbOn(t, cudatest.Open(t)) }

// TestGoldenLadderOnHost is TestGoldenLadderOnGPU on a backend that uses the host's memory.
func TestGoldenLadderOnHost(t *testing.T) { climbOn(t, graph.NewCPU(1)) }

func climbOn(t *testing.T, b graph.Backend) {
	testutil.EachGolden(t, testutil.TinyLM, func(t *testing.T, g testutil.Golden) {
		for name, opts := range map[string][]graph.Option{"eager": nil, "captured": {graph.WithCapture()}} {
			t.Run(name, func(t *testing.T) {
				solver := newTestSolver(t, goldenSchedule(g))
				m := goldenModel(t, g, tensor.Float32, b, WithOptimizer(solver), WithMachine(append(opts, graph.WithBackend(b))...))
				climb(t, m, g, bounds{1e-5, 1e-5, 1e-4}, func(t testing.TB, m *Model, g testutil.Golden) ([]float64, []float64) {
					return goldenStepsOn(t, m, solver, g)
				})
			})
		}
	})
}

// goldenStepsOn is goldenSteps with Model.Step. It reads losses and norms one step late.
func goldenStepsOn(t testing.TB, m *Model, solver *optim.AdamW, g testutil.Golden) (losses, norms []float64) {
	loss := testutil.Must(m.LossReader())(t)
	var norm *graph.AsyncReader
	read := func() {
		for r, list := range map[*graph.AsyncReader]*[]float64{loss: &losses, norm: &norms} {
			*list = append(*list, testutil.Must(r.Next())(t))
		}
	}
	for i := range g.Config.Total {
		setGoldenTokens(t, m, g, i)
		require.NoError(t, m.Step())
		if norm == nil {
			norm = testutil.Must(solver.NormReader())(t)
		}
		require.NoError(t, loss.Fetch())
		require.NoError(t, norm.Fetch())
		if i > 0 {
			read()
		}
	}
	read()
	return losses, norms
}

// source is real text: an old version of the Go files of this package.
//
//go:embed testdata/source.txt
var source []byte

// TestHalfPrecisionFollowsFloat32: Tiny() learns equally well in all precisions. Training amplifies every rounding.
// Even in float32, if the first weights are rounded to bf16, the loss of a single step of a single run differs by up to
// 1.3 % (measured on an H200), in both directions. So the test compares the mean loss over four seeds at each step:
// roundings average out there, and a bias does not. It also compares the mean difference of each run over all steps.
func TestHalfPrecisionFollowsFloat32(t *testing.T) {
	b := cudatest.Open(t)
	const steps, seeds = 300, 4
	curves := map[graph.Precision][seeds][]float64{}
	for _, p := range []graph.Precision{graph.F32, graph.BF16, graph.FP16} {
		var list [seeds][]float64
		for i := range list {
			list[i] = lossCurve(t, b, p, steps, uint64(i+1))
			require.Less(t, list[i][steps-1], 2.5)
		}
		curves[p] = list
	}
	for _, p := range []graph.Precision{graph.BF16, graph.FP16} {
		worst, at := 0.0, 0
		var apart [seeds]float64
		for step := range steps {
			exact, half := 0.0, 0.0
			for i := range apart {
				x, y := curves[graph.F32][i][step], curves[p][i][step]
				exact, half = exact+x, half+y
				apart[i] += math.Abs(y/x-1) / steps
			}
			if off := math.Abs(half/exact - 1); off > worst {
				worst, at = off, step
			}
		}
		t.Logf("%v: mean losses at most %.2f %% apart (step %d); each run on average %.3f %%", p, 100*worst, at,
			100*slices.Max(apart[:]))
		assert.Less(t, worst, 0.01, "%v: mean losses at step %d", p, at)
		assert.Less(t, slices.Max(apart[:]), 0.01, "%v: mean distance of a run", p)
	}
}

// lossCurve returns the losses of the first steps of Tiny() on real text. The seed decides the weights and the batches.
func lossCurve(t testing.TB, b graph.Backend, p graph.Precision, steps int, seed uint64) (losses []float64) {
	w := newTestWeights(t, Tiny(), tensor.Float32, seed)
	solver := newTestSolver(t, optim.WithSchedule(optim.WarmupCosine{LR: 3e-3, Warmup: steps / 10, Total: steps, Floor: 0.05}))
	m := newTestModel(t, w, b, 16, 256, WithoutLogits(), WithLossScale(), WithOptimizer(solver),
		WithMachine(graph.WithBackend(b), graph.WithPrecision(p), graph.WithCapture()))
	if p == graph.FP16 {
		require.NoError(t, m.SetLossScale(optim.NewLossScale().Value()))
	}
	loss := testutil.Must(m.LossReader())(t)
	next := windows(m, source[:len(source)*9/10], seed)
	for range steps {
		next()
		require.NoError(t, m.Step())
		require.NoError(t, loss.Fetch())
		losses = append(losses, testutil.Must(loss.Next())(t))
	}
	return losses
}

// TestTwoGPUs trains and decodes on two GPUs of one model at the same time, from one process. Both give the bits of the
// first one alone. Neither takes weights of the other.
func TestTwoGPUs(t *testing.T) {
	first := cudatest.Open(t)
	b, err := cuda.Open(1)
	if none, ok := errors.AsType[*cuda.Unavailable](err); ok && none.Reason == cuda.ReasonOrdinal {
		t.Skip("needs two GPUs: ", err)
	}
	second := testutil.Closing(b, err)(t)
	if first.Device().Name != second.Device().Name {
		t.Skip("needs two GPUs of one model")
	}
	tokens := testutil.Tokens(3, 150, small().Vocab)
	weightsOn := func(t *testing.T, b graph.Backend) *Weights {
		w := newTestWeights(t, small(), tensor.Float32, 1)
		require.NoError(t, w.MoveTo(b))
		t.Cleanup(func() { require.NoError(t, w.Free()) })
		return w
	}
	results := func(t *testing.T, b graph.Backend) []float64 {
		w := weightsOn(t, b)
		d := testutil.Closing(NewDecoder(w, 2, len(tokens), DecodeOn(b, graph.BF16)))(t)
		return append(decodeAll(t, d, 1, tokens, 40), lossCurve(t, b, graph.BF16, 20, 1)...)
	}
	want := results(t, first)
	t.Run("both", func(t *testing.T) {
		for _, b := range []*cuda.Backend{first, second} {
			t.Run(fmt.Sprint("cuda:", b.Number()), func(t *testing.T) {
				t.Parallel()
				for range 3 {
					require.Equal(t, want, results(t, b))
				}
			})
		}
	})
	_, err = NewDecoder(weightsOn(t, first), 1, 90, DecodeOn(second, graph.BF16))
	require.ErrorContains(t, err, "another backend")
}

// TestRestoreOnGPU: after weights are restored between two steps, training continues from them and from their copies in
// half precision.
func TestRestoreOnGPU(t *testing.T) {
	b := cudatest.Open(t)
	w := newTestWeights(t, small(), tensor.Float32, 1)
	path := filepath.Join(t.TempDir(), "weights.safetensors")
	require.NoError(t, w.Save(path))
	m := newTestModel(t, w, b, 4, w.Config.Context, WithoutLogits(), WithOptimizer(newTestSolver(t)),
		WithMachine(graph.WithBackend(b), graph.WithPrecision(graph.BF16), graph.WithCapture()))
	windows(m, prose, 1)()
	step := func() float64 {
		require.NoError(t, m.Step())
		return testutil.Must(m.Loss())(t)
	}
	first := step()
	for range 5 {
		require.Less(t, step(), first)
	}
	require.NoError(t, m.Machine().Synchronize())
	require.NoError(t, w.Restore(path))
	require.Equal(t, first, step())
}

// TestStepOnGPUAllocatesNothing: a step does not wait either, and copies only the tokens and the numbers of the
// optimizer.
func TestStepOnGPUAllocatesNothing(t *testing.T) {
	b := cudatest.Open(t)
	w := newTestWeights(t, small(), tensor.Float32, 1)
	m := newTestModel(t, w, b, 4, w.Config.Context, WithoutLogits(), WithOptimizer(newTestSolver(t)),
		WithMachine(graph.WithBackend(b), graph.WithPrecision(graph.BF16), graph.WithCapture(),
			graph.WithPolicy(graph.Policy{})))
	next := windows(m, prose, 1)
	step := func() {
		next()
		if err := m.Step(); err != nil {
			t.Error(err)
		}
	}
	for range 3 {
		step()
	}
	before := m.Machine().Counts()
	require.Zero(t, testing.AllocsPerRun(10, step))
	after := m.Machine().Counts()
	require.Equal(t, before["download"], after["download"])
	require.Equal(t, before["upload"]+3*11, after["upload"], "tokens, targets, and the numbers of the step")
	require.Zero(t, after["host"])
	m.Tokens()[3] = 256
	require.ErrorContains(t, m.Step(), "id 256 at (0, 3)")
}

// TestDecoderOnGPU prefills, at once and in chunks, and decodes on a GPU. In float32 the logits are those of a model on the
// CPU. In half precision their error is at most twice that of a model of the whole sequence on the GPU, plus a unit
// roundoff.
func TestDecoderOnGPU(t *testing.T) {
	const n = 150
	b := cudatest.Open(t)
	for name, c := range decodeConfigs() {
		w := newTestWeights(t, c, tensor.Float32, 1)
		tokens := testutil.Tokens(3, n, c.Vocab)
		want := logitsOf(t, w, tokens)
		require.NoError(t, w.MoveTo(b))
		for p, unit := range unitRoundoffs() {
			t.Run(fmt.Sprint(name, "/", p), func(t *testing.T) {
				bound := boundOn(t, b, w, p, unit, tokens, want)
				d := testutil.Closing(NewDecoder(w, 2, n, DecodeOn(b, p)))(t)
				inChunks := testutil.Closing(NewDecoder(w, 2, n, DecodeOn(b, p), PrefillChunk(20)))(t)
				for first := 1; first < n; first = 2*first + 17 {
					for _, d := range []*Decoder{d, inChunks} {
						testutil.Within(t, fmt.Sprintf("logits behind %d in chunks of %d", first, d.chunk),
							decodeAll(t, d, 1, tokens, first), want[(first-1)*c.Vocab:], bound)
					}
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

// TestTopTokensOnGPU: what a step brings to the host are the largest of the logits that it leaves on the GPU, and these
// are within the bounds of TestDecoderOnGPU of a model's.
func TestTopTokensOnGPU(t *testing.T) {
	const n, first, slots = 40, 10, 5
	b, c := cudatest.Open(t), manyTokens()
	w, tokens := newTestWeights(t, c, tensor.Float32, 1), testutil.Tokens(3, n, c.Vocab)
	want := logitsOf(t, w, tokens)
	require.NoError(t, w.MoveTo(b))
	for p, unit := range unitRoundoffs() {
		t.Run(p.String(), func(t *testing.T) {
			bound := boundOn(t, b, w, p, unit, tokens, want)
			d := testutil.Closing(NewDecoder(w, slots, n, DecodeOn(b, p)))(t)
			for slot := range slots {
				require.NoError(t, d.Prefill(slot, tokens[:first+slot]))
			}
			for i := range n - first - slots + 1 {
				next := make([]int32, slots)
				for slot := range next {
					next[slot] = tokens[d.Len(slot)]
				}
				require.NoError(t, d.Step(next))
				for slot := range slots {
					ids, top := d.top(slot)
					require.Len(t, ids, maxTopTokens)
					ids, top = slices.Clone(ids), slices.Clone(top)
					logits, best := d.Logits(slot), make([]int32, maxTopTokens)
					cpu.Top(best, logits)
					require.Equal(t, best, ids, "step %d, slot %d", i, slot)
					for j, id := range ids {
						require.Equal(t, logits[id], top[j])
					}
					testutil.Within(t, fmt.Sprint("logits of slot ", slot), testutil.Convert[float64](logits),
						want[(d.Len(slot)-1)*c.Vocab:][:c.Vocab], bound)
				}
			}
		})
	}
	require.NoError(t, w.Free())
}

// unitRoundoffs returns the precisions of a GPU with the unit roundoffs of half precision, 0 for float32.
func unitRoundoffs() map[graph.Precision]float64 {
	return map[graph.Precision]float64{graph.F32: 0, graph.BF16: 1. / 256, graph.FP16: 1. / 2048}
}

// boundOn returns the bound of TestDecoderOnGPU for the logits of tokens on b, whose exact values are want.
func boundOn(t *testing.T, b graph.Backend, w *Weights, p graph.Precision, unit float64, tokens []int32,
	want []float64) float64 {
	if unit == 0 {
		return 1e-5
	}
	m := newTestModel(t, w, nil, 1, len(tokens), WithMachine(graph.WithBackend(b), graph.WithPrecision(p)))
	copy(m.Tokens(), tokens)
	require.NoError(t, m.Run())
	return 2*testutil.RelErr(testutil.Floats(t, testutil.Must(m.Logits())(t).Data()), want) + unit
}

// TestSharedPrefixOnGPU: on a GPU the sequences that share a prefix have the bits of the one that has computed it. They
// and a prompt that shares nothing are within the bounds of TestDecoderOnGPU.
func TestSharedPrefixOnGPU(t *testing.T) {
	const prefix, prompt, n, slots = 620, 650, 680, 3 // with short blocks they share the first of two pages
	b := cudatest.Open(t)
	for name, c := range decodeConfigs() {
		w := newTestWeights(t, c, tensor.Float32, 1)
		tokens := testutil.Tokens(3, n, c.Vocab)
		want := logitsOf(t, w, tokens)
		require.NoError(t, w.MoveTo(b))
		for p, unit := range unitRoundoffs() {
			for _, chunk := range []int{0, 100} {
				t.Run(fmt.Sprintf("%s/%v/%d", name, p, chunk), func(t *testing.T) {
					bound := boundOn(t, b, w, p, unit, tokens, want)
					d := testutil.Closing(NewDecoder(w, slots, n, DecodeOn(b, p), PrefillChunk(chunk)))(t)
					within := func(what string, got []float64) {
						testutil.Within(t, what, got, want[(prompt-1)*c.Vocab:], bound)
					}
					within("separate", decodeAll(t, d, 0, tokens, prompt))
					require.NoError(t, d.SharePrefix(tokens[:prefix]))
					first := decodeAll(t, d, 0, tokens, prompt)
					within("first of the prefix", first)
					for slot := 1; slot < slots; slot++ {
						require.Equal(t, first, decodeAll(t, d, slot, tokens, prompt), "slot %d", slot)
					}
					shared := d.settledPages(prefix)
					require.Equal(t, c.BlockLen < pageTokens, shared == 1)
					require.Equal(t, d.sequences[0].pages[:shared], d.sequences[2].pages[:shared])
				})
			}
		}
		require.NoError(t, w.Free())
	}
}

// TestDecoderOnGPUSequencesJoinAndLeave is TestDecoderSequencesJoinAndLeave, against runs in which the other slots take
// no steps.
func TestDecoderOnGPUSequencesJoinAndLeave(t *testing.T) {
	b, w := cudatest.Open(t), newTestWeights(t, small(), tensor.Float32, 1)
	require.NoError(t, w.MoveTo(b))
	for _, p := range []graph.Precision{graph.F32, graph.BF16} {
		d := testutil.Must(NewDecoder(w, 5, 90, DecodeOn(b, p)))(t)
		joinAndLeave(t, d, d, 20)
		require.NoError(t, d.Close())
	}
	require.NoError(t, w.Free())
}
