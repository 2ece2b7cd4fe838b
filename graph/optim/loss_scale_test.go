package optim

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
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
	for _, bad := range []string{`{}`, `{"value":0.5}`, `{"value":1e9}`, `{"value":8,"good":-1}`, `{"value":8,"good":1000}`, `[]`, `{"value":"x"}`} {
		require.ErrorContains(t, json.Unmarshal([]byte(bad), other), "optim: loss scale", bad)
	}
}
