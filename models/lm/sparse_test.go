package lm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/lm"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops"
)

// TestWithNSA: where window and selected blocks hold the whole text, a converted model has nearly the logits of the dense
// one, with all layers of NSA and with some. Beyond, it differs.
func TestWithNSA(t *testing.T) {
	for _, name := range families {
		for _, attention := range []tinylm.Attention{"", "dense,nsa", "nsa,window"} {
			want := testutil.Must(safetensors.Read("testdata/" + name + "/logits.safetensors"))(t).Tensors
			dense := testutil.Must(lm.ReadWeights("testdata/" + name))(t)
			for _, window := range []int{96, 16} {
				s := lm.Sparse{Attention: attention, GateHidden: 4,
					Params: ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: max(4, window/8), Window: window}}
				w := testutil.Must(lm.WithNSA(dense, s))(t)
				m := testutil.Must(tinylm.NewModel(w, 2, 90))(t)
				copy(m.Tokens(), want["tokens"].Int32s())
				require.NoError(t, m.Run())
				logits := float64s(testutil.Must(m.Logits())(t).Float32s())
				off := testutil.RelErr(logits, float64s(want["logits"].Float32s()))
				if window == 96 {
					require.Less(t, off, 0.02, "%s %s", name, attention)
				} else {
					require.Greater(t, off, 0.02, "%s %s", name, attention)
				}
				require.NoError(t, m.Close())
			}
		}
	}
	dense := testutil.Must(lm.ReadWeights("testdata/qwen2"))(t)
	require.ErrorContains(t, testutil.Err(lm.WithNSA(dense, lm.Sparse{})), "gate hidden")
	require.ErrorContains(t, testutil.Err(lm.WithNSA(nil, lm.Sparse{})), "no weights")
	s := lm.Sparse{GateHidden: 4, Params: ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 4, Window: 8}}
	sparse := testutil.Must(lm.WithNSA(dense, s))(t)
	require.ErrorContains(t, testutil.Err(lm.WithNSA(sparse, s)), "want dense")
}

// TestAlignment: a model with dense layers beside its sparse ones has the logits of the dense model. Its loss is the error
// of the sparse layers, and training lowers it, changes them alone, and brings the model without the dense ones nearer
// to the dense one. The loss of layers that see the whole text is nearly 0.
func TestAlignment(t *testing.T) {
	for _, attention := range []tinylm.Attention{"nsa", "window,nsa", "dense,nsa"} {
		want := testutil.Must(safetensors.Read("testdata/qwen3/logits.safetensors"))(t).Tensors
		target := float64s(want["logits"].Float32s())
		dense := testutil.Must(lm.ReadWeights("testdata/qwen3"))(t)
		s := lm.Sparse{Attention: attention, GateHidden: 4, Align: true,
			Params: ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 8, Window: 32}}
		w := testutil.Must(lm.WithNSA(dense, s))(t)
		solver := testutil.Must(optim.NewAdamW(optim.WithLR(3e-3)))(t)
		m := testutil.Must(tinylm.NewModel(w, 2, 90, tinylm.WithOptimizer(solver)))(t)
		copy(m.Tokens(), want["tokens"].Int32s())
		distance := func() float64 {
			a := testutil.Must(tinylm.NewModel(testutil.Must(w.Aligned())(t), 2, 90))(t)
			defer a.Close()
			copy(a.Tokens(), m.Tokens())
			require.NoError(t, a.Run())
			return testutil.RelErr(float64s(testutil.Must(a.Logits())(t).Float32s()), target)
		}
		before, losses := distance(), []float64(nil)
		for range 30 {
			losses = append(losses, testutil.Must(m.LossAndStep(solver))(t))
			testutil.Within(t, "logits", float64s(testutil.Must(m.Logits())(t).Float32s()), target, 1e-5)
		}
		require.Less(t, losses[29], 0.7*losses[0], attention)
		require.Less(t, distance(), before, attention)
		for name, v := range testutil.Must(lm.ReadWeights("testdata/qwen3"))(t).Tensors {
			if kept := w.Tensors[name]; kept != nil && !w.Config.Trains(name) {
				require.Equal(t, v.Data(), kept.Data(), name)
			} else if kept != nil {
				require.NotEqual(t, v.Data(), kept.Data(), name)
			}
		}
		require.NoError(t, m.Close())

		s.TopN, s.Window = 12, 96
		m = testutil.Must(tinylm.NewModel(testutil.Must(lm.WithNSA(dense, s))(t), 2, 90))(t)
		copy(m.Tokens(), want["tokens"].Int32s())
		require.NoError(t, m.Run())
		require.Less(t, testutil.Must(m.Loss())(t), 1e-3)
		require.NoError(t, m.Close())
	}
}
