package decode_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// TestBranches: a set has the branches that it was made of, and nothing else.
func TestBranches(t *testing.T) {
	all := []decode.Branch{decode.Compressed, decode.Selected, decode.Window}
	require.Len(t, all, decode.NumBranches)
	for set := range decode.Branches(1 << decode.NumBranches) {
		var list []decode.Branch
		for _, b := range all {
			if set.Has(b) {
				list = append(list, b)
			}
		}
		require.Equal(t, set, decode.BranchesOf(list...))
		require.Equal(t, set, decode.BranchesOf(append(list, -1, decode.NumBranches, 100)...))
		require.False(t, set.Has(-1))
		require.False(t, set.Has(100))
		require.False(t, (set | 1<<decode.NumBranches).Has(decode.NumBranches))
	}
}
