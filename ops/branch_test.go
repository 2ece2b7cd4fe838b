package ops_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/ops"
)

// TestBranches: a set has the branches that it was made of, and nothing else.
func TestBranches(t *testing.T) {
	all := []ops.Branch{ops.Compressed, ops.Selected, ops.Window}
	require.Len(t, all, ops.NumBranches)
	for set := range ops.Branches(1 << ops.NumBranches) {
		var list []ops.Branch
		for _, b := range all {
			if set.Has(b) {
				list = append(list, b)
			}
		}
		require.Equal(t, set, ops.BranchesOf(list...))
		require.Equal(t, set, ops.BranchesOf(append(list, -1, ops.NumBranches, 100)...))
		require.False(t, set.Has(-1))
		require.False(t, set.Has(100))
		require.False(t, (set | 1<<ops.NumBranches).Has(ops.NumBranches))
	}
}
