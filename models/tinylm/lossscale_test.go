package tinylm

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestLossScaleCancels: the weights after some steps are the same bits at any scale.
func TestLossScaleCancels(t *testing.T) {
	var want map[string][]float64
	for _, scale := range []float64{0, 1, 1 << 16} {
		w := newTestWeights(t, small(), tensor.Float32, 1)
		var opts []ModelOption
		if scale > 0 {
			opts = append(opts, WithLossScale())
		}
		m := newTestModel(t, w, nil, 2, 64, opts...)
		if scale > 0 {
			require.NoError(t, m.SetLossScale(scale))
			require.ErrorContains(t, m.SetLossScale(0), "want a number above 0")
		} else {
			require.ErrorContains(t, m.SetLossScale(1), "built without one")
		}
		solver := newTestSolver(t, m)
		b := newBatches(text(t).Train, 1)
		for range 3 {
			b.next(m.Tokens(), m.Targets(), 64)
			require.NoError(t, m.RunAndStep(solver))
		}
		norm := testutil.Must(solver.Norm())(t)
		got := bits(t, w)
		got["norm"] = []float64{norm}
		if want == nil {
			want = got
		}
		require.Equal(t, want, got)
	}
}
