package spec_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// TestForcedBlocks compares with the definition: the forced blocks of query t are the first one and the two newest, and
// the free ones lie between them. No number is a block if the size is not positive.
func TestForcedBlocks(t *testing.T) {
	for _, size := range []int{-1, 0, 1, 2, 3} {
		for q := -3; q < 12; q++ {
			free := 0
			for block := -2; block < 14; block++ {
				exists := size > 0 && q >= 0 && block >= 0 && block*size <= q
				forced := exists && (block == 0 || (block+2)*size > q)
				require.Equal(t, forced, spec.IsForced(q, block, size), "t = %d, block = %d, l' = %d", q, block, size)
				if exists && !forced {
					free++
				}
			}
			require.Equal(t, free, spec.FreeBlocks(q, size), "t = %d, l' = %d", q, size)
		}
	}
}

// TestNumCompressed counts the blocks [i*d, i*d+l) within s tokens one by one. Sizes that are not positive have no
// blocks.
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
				require.Equal(t, want, spec.NumVisible(s-1, l, d), "t = %d, l = %d, d = %d", s-1, l, d)
			}
		}
	}
	require.Zero(t, ops.NumCompressed(math.MaxInt, math.MinInt, 1))
}
