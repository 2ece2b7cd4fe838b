package optim

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestWarmupLinear: the warm-up and both ends are those of WarmupCosine, and all points between are on a line.
func TestWarmupLinear(t *testing.T) {
	c := WarmupCosine{LR: 2, Warmup: 4, Total: 12, Floor: 0.1}
	s := WarmupLinear(c)
	require.NoError(t, s.Validate())
	for _, step := range []int{0, 1, 3, 4, 8, 12, 100} {
		require.InDelta(t, c.At(step), s.At(step), 1e-15, "step %d", step)
	}
	for step := 5; step < 12; step++ {
		require.InDelta(t, s.At(step), (s.At(step-1)+s.At(step+1))/2, 1e-15, "step %d", step)
	}
	require.ErrorContains(t, WarmupLinear{LR: 1, Floor: 2}.Validate(), "floor is 2")
}

func TestWarmupCosine(t *testing.T) {
	s := WarmupCosine{LR: 2, Warmup: 4, Total: 12, Floor: 0.1}
	require.NoError(t, s.Validate())
	for step, want := range map[int]float64{
		0: 0.5, 1: 1, 3: 2, 4: 2, 8: 2 * (0.1 + 0.9*0.5), 12: 0.2, 100: 0.2,
	} {
		require.InDelta(t, want, s.At(step), 1e-15, "step %d", step)
	}
	require.InDelta(t, 1, WarmupCosine{LR: 1, Total: 10}.At(0), 0, "no warm-up")
	for step, want := range map[int]float64{4: 3, 5: 3, 6: 1.5, 100: 1.5} {
		require.InDelta(t, want, WarmupCosine{LR: 3, Warmup: 5, Total: 5, Floor: 0.5}.At(step), 0,
			"nothing but warm-up, step %d", step)
	}
	require.InDelta(t, 0.25, Constant(0.25).At(7), 0)
}

func TestWarmupCosineRefuses(t *testing.T) {
	for message, s := range map[string]WarmupCosine{
		"learning rate is 0":   {},
		"learning rate is NaN": {LR: math.NaN()},
		"warm-up of -1 steps":  {LR: 1, Warmup: -1},
		"-5 steps in all":      {LR: 1, Total: -5},
		"floor is 1.5":         {LR: 1, Floor: 1.5},
		"floor is NaN":         {LR: 1, Floor: math.NaN()},
	} {
		require.ErrorContains(t, s.Validate(), message)
	}
}

func TestLossScale(t *testing.T) {
	l := NewLossScale()
	require.True(t, l.Adjust(math.Inf(1), firstLossScale))
	require.True(t, l.Adjust(math.NaN(), firstLossScale), "begun before the first was known")
	require.Equal(t, firstLossScale/2., l.value)
	require.True(t, l.Adjust(math.NaN(), l.value))
	require.Equal(t, firstLossScale/4., l.value)
	for range goodSteps {
		require.False(t, l.Adjust(3, l.value))
	}
	require.Equal(t, firstLossScale/2., l.value)
	for range 30 * goodSteps {
		l.Adjust(3, l.value)
	}
	require.Equal(t, float64(maxLossScale), l.value)
	for range 24 {
		require.True(t, l.Adjust(math.NaN(), l.value))
	}
	require.Equal(t, float64(minLossScale), l.value)
	require.True(t, l.Adjust(math.NaN(), 2), "at 1 it may still go on")
	require.False(t, l.Adjust(math.NaN(), 1), "no smaller scale would help")
}

// TestLossScaleInJSON: a scale that was written and read behaves as the original.
func TestLossScaleInJSON(t *testing.T) {
	one, other := NewLossScale(), new(LossScale)
	for step := range 5 * goodSteps {
		norm := 3.0
		if step%1700 == 9 {
			norm = math.Inf(1)
		}
		one.Adjust(norm, one.Value())
		require.NoError(t, json.Unmarshal(testutil.Must(json.Marshal(one))(t), other))
		require.Equal(t, one, other)
	}
	for _, bad := range []string{`{}`, `{"value":0.5}`, `{"value":1e9}`, `{"value":8,"good":-1}`,
		`{"value":8,"good":1000}`, `[]`, `{"value":"x"}`} {
		require.ErrorContains(t, json.Unmarshal([]byte(bad), other), "optim: loss scale", bad)
	}
}
