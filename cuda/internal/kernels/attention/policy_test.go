package attention

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMinKeysTakesTheNextLargerDim(t *testing.T) {
	list := []threshold{{80, "window", 64, 30}, {90, "window", 64, 100}, {90, "window", 128, 50}, {90, "select", 64, 7}}
	for _, c := range []struct {
		capability int
		branch     string
		dim, want  int64
	}{
		{90, "window", 8, 100}, {90, "window", 64, 100}, {90, "window", 65, 50}, {90, "window", 128, 50}, {90, "window", 192, 1},
		{80, "window", 64, 30}, {80, "window", 72, 1}, {90, "select", 64, 7}, {90, "selected", 64, 1}, {100, "window", 64, 1},
	} {
		require.Equal(t, c.want, minKeys(list, c.capability, c.branch, c.dim), "%+v", c)
	}
}

// TestThresholdsAscendByDim: the dims of one capability and branch ascend.
func TestThresholdsAscendByDim(t *testing.T) {
	list := thresholds()
	for i, a := range list {
		require.Contains(t, []string{"window", "compressed", "selected", "select"}, a.branch)
		require.GreaterOrEqual(t, a.keys, int64(1))
		for _, b := range list[i+1:] {
			if a.capability == b.capability && a.branch == b.branch {
				require.Less(t, a.dim, b.dim)
			}
		}
	}
}
