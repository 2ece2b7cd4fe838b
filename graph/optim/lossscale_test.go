package optim

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

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
	require.Equal(t, float64(mostLossScale), l.value)
	for range 24 {
		require.True(t, l.Adjust(math.NaN(), l.value))
	}
	require.Equal(t, float64(leastLossScale), l.value)
	require.True(t, l.Adjust(math.NaN(), 2), "at 1 it may still go on")
	require.False(t, l.Adjust(math.NaN(), 1), "no smaller scale would help")
}
