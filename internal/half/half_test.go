package half_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/half"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestAllNumbers: Float32 has the value of all bits, and Round gives them back.
func TestAllNumbers(t *testing.T) {
	for i := range 1 << 16 {
		bits := uint16(i)
		got, want := half.Float32(bits), testutil.FromFloat16(bits)
		if math.IsNaN(want) {
			require.True(t, got != got, "%#x", bits)
			require.True(t, math.IsNaN(testutil.FromFloat16(half.Round(got))), "%#x", bits)
			continue
		}
		require.Equal(t, math.Float64bits(want), math.Float64bits(float64(got)), "%#x", bits)
		require.Equal(t, bits, half.Round(got))
	}
}

// TestRound: numbers between two neighbours and beside them, of either sign, round to nearest even.
func TestRound(t *testing.T) {
	for i := range 0x7c00 {
		low, high := testutil.FromFloat16(uint16(i)), testutil.FromFloat16(uint16(i+1))
		if i == 0x7bff {
			high = 1 << 16
		}
		middle := float32((low + high) / 2)
		for _, x := range []float32{middle, math.Nextafter32(middle, 0), math.Nextafter32(middle, 1<<20)} {
			require.Equal(t, testutil.Float16(float64(x)), half.Round(x), "%g", x)
			require.Equal(t, testutil.Float16(float64(-x)), half.Round(-x), "%g", -x)
		}
	}
	require.Equal(t, uint16(0x7bff), half.Round(math.Nextafter32(half.Overflow, 0)))
	require.Equal(t, uint16(0x7c00), half.Round(half.Overflow))
	require.Equal(t, uint16(0xfc00), half.Round(float32(math.Inf(-1))))
}
