package optim

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
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
		require.InDelta(t, want, WarmupCosine{LR: 3, Warmup: 5, Total: 5, Floor: 0.5}.At(step), 0, "nothing but warm-up, step %d", step)
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
