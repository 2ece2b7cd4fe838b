package tinylm

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/cudatest"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

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

// TestDecoderOnGPUSequencesJoinAndLeave is TestDecoderSequencesJoinAndLeave, against runs in which the other slots take no steps.
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
