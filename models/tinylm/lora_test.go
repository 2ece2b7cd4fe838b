package tinylm

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestLoRA: updates change nothing at first. Training changes them alone, and then the merged weights have the logits of
// those that are not merged. This holds for layers of all kinds, with biases, norms and gated MLPs.
func TestLoRA(t *testing.T) {
	for _, attention := range []Attention{NSA, Dense, "window,nsa,dense"} {
		c := Tiny()
		c.Vocab, c.Layers, c.Dim, c.Attention = 31, 3, 32, attention
		c.Family, c.QKVBias, c.QKNorm = Family{MLPDim: 48, GatedMLP: true, TiedHead: true}, true, 1e-5
		base := newTestWeights(t, c, tensor.Float32, 1)
		w := testutil.Must(base.WithLoRA(4, 2))(t)
		logits := func(w *Weights) []float64 {
			m := testutil.Must(NewModel(w, 2, 40))(t)
			defer m.Close()
			for i := range m.Tokens() {
				m.Tokens()[i] = int32(i * i % c.Vocab)
			}
			require.NoError(t, m.Run())
			return testutil.Floats(t, testutil.Must(m.Logits())(t).Data())
		}
		before := logits(base)
		require.Equal(t, before, logits(w))

		old := map[string][]float64{}
		for name, v := range w.Tensors {
			old[name] = testutil.Floats(t, v.Data())
		}
		m := testutil.Must(NewModel(w, 2, 40, WithOptimizer(testutil.Must(optim.NewAdamW(optim.WithLR(0.05)))(t))))(t)
		for range 3 {
			for i := range m.Tokens() {
				m.Tokens()[i] = int32(i % 5)
			}
			m.NextTokens()
			require.NoError(t, m.Step())
		}
		require.NoError(t, m.Close())
		changed := 0
		for name, v := range w.Tensors {
			if nn.IsLoRA(name) {
				changed++
				require.NotEqual(t, old[name], testutil.Floats(t, v.Data()), name)
			} else {
				require.Equal(t, old[name], testutil.Floats(t, v.Data()), name)
			}
		}
		require.Len(t, w.Tensors, len(base.Tensors)+changed)
		after := logits(w)
		require.NotEqual(t, before, after)
		merged := testutil.Must(w.Merged())(t)
		require.Equal(t, base.Config, merged.Config)
		testutil.Within(t, "logits of merged weights", logits(merged), after, 1e-5)

		require.ErrorContains(t, testutil.Err(w.WithLoRA(4, 2)), "rank 4")
		require.ErrorContains(t, testutil.Err(base.WithLoRA(0, 2)), "rank 0")
	}
}
