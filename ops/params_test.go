package ops_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/ops"
)

// TestNumCompressed counts the blocks [i*d, i*d+l) within s tokens one by one; sizes that are not positive have none.
func TestNumCompressed(t *testing.T) {
	sizes := []int{-1, 0, 1, 2, 3, 5}
	for _, l := range sizes {
		for _, d := range sizes {
			for s := -2; s < 12; s++ {
				want := 0
				for i := 0; l > 0 && d > 0 && i*d+l <= s; i++ {
					want++
				}
				require.Equal(t, want, ops.NumCompressed(s, l, d), "s = %d, l = %d, d = %d", s, l, d)
				require.Equal(t, want, ops.NumVisible(s-1, l, d), "t = %d, l = %d, d = %d", s-1, l, d)
			}
		}
	}
	require.Zero(t, ops.NumCompressed(math.MaxInt, math.MinInt, 1))
}
