package tinylm

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
)

func TestLossScale(t *testing.T) {
	l := newLossScale()
	require.True(t, l.adjust(math.Inf(1), firstLossScale))
	require.True(t, l.adjust(math.NaN(), firstLossScale), "begun before the first was known")
	require.Equal(t, firstLossScale/2., l.value)
	require.True(t, l.adjust(math.NaN(), l.value))
	require.Equal(t, firstLossScale/4., l.value)
	for range goodSteps {
		require.False(t, l.adjust(3, l.value))
	}
	require.Equal(t, firstLossScale/2., l.value)
	for range 30 * goodSteps {
		l.adjust(3, l.value)
	}
	require.Equal(t, float64(mostLossScale), l.value)
	for range 24 {
		require.True(t, l.adjust(math.NaN(), l.value))
	}
	require.Equal(t, float64(leastLossScale), l.value)
	require.True(t, l.adjust(math.NaN(), 2), "at 1 it may still go on")
	require.False(t, l.adjust(math.NaN(), 1), "no smaller scale would help")
}

// TestLossScaleCancels: the weights after some steps are the same bits at any scale.
func TestLossScaleCancels(t *testing.T) {
	var want map[string][]float64
	for _, scale := range []float64{0, 1, 1 << 16} {
		w, err := NewWeights(small(), tensor.Float32, 1)
		require.NoError(t, err)
		opts := []ModelOption{WithGradients()}
		if scale > 0 {
			opts = append(opts, WithLossScale())
		}
		m, err := NewModel(w, 2, 64, opts...)
		require.NoError(t, err)
		if scale > 0 {
			require.NoError(t, m.SetLossScale(scale))
			require.ErrorContains(t, m.SetLossScale(0), "want a number above 0")
		} else {
			require.ErrorContains(t, m.SetLossScale(1), "built without one")
		}
		solver, err := graph.NewAdamW(graph.WithSolverMachine(m.Machine()))
		require.NoError(t, err)
		b := newBatches(text(t).Train, 1)
		for range 3 {
			b.next(m.Tokens(), m.Targets(), 64)
			require.NoError(t, m.Step(solver))
		}
		norm, err := solver.Norm()
		require.NoError(t, err)
		got := bits(t, w)
		got["norm"] = []float64{norm}
		if want == nil {
			want = got
		}
		require.Equal(t, want, got)
		require.NoError(t, solver.Close())
		require.NoError(t, m.Close())
	}
}
