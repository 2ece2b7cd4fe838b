package tinylm

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGateStatistics(t *testing.T) {
	var s GateStatistics
	s.Add([3]float64{1, 0, 0}, 0.5) // a share of 0 adds nothing to the entropy
	s.Add([3]float64{0.5, 0.5, 0.5}, 0.5)
	require.InDeltaSlice(t, []float64{0.75, 0.25, 0.25}, s.Mean[:], 1e-12)
	require.InDelta(t, math.Log(3)/2, s.Entropy, 1e-12)
}
