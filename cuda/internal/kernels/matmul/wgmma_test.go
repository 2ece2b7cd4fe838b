package matmul

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// TestSharesCoverAllSteps: every step of every tile is in one share, parts of tiles have places of their own in
// ascending order, and where tiles are cut no cluster has more than its part and a few steps.
func TestSharesCoverAllSteps(t *testing.T) {
	for _, p := range []kernels.Product{
		{M: 32768, N: 1600, K: 768}, {M: 32768, N: 768, K: 3072}, {M: 1600, N: 768, K: 32768}, {M: 768, N: 768, K: 32768},
		{M: 256, N: 768, K: 32768}, {M: 3072, N: 768, K: 32768}, {M: 4096, N: 4096, K: 4096}, {M: 1, N: 8, K: 1 << 21},
		{M: 520, N: 264, K: 584}, {M: 300, N: 40000, K: 8}, {M: 70000, N: 70, K: 70},
	} {
		for _, sms := range []int64{1, 4, 77, 132} {
			plan := planWGMMA(p, sms)
			seen := map[[2]int64][]wgmmaShare{}
			count, total, load := 0, int64(0), make([]int64, plan.clusters)
			for i := range plan.whole {
				row, column := plan.locate(i)
				seen[[2]int64{row, column}] = append(seen[[2]int64{row, column}], wgmmaShare{count: uint16(plan.steps), place: -1})
			}
			for c := range plan.sharing {
				for at := c; at >= 0; at = int(plan.shares[at].next) {
					x := plan.shares[at]
					count++
					weight := weightOf(p, int64(x.row))
					load[c] += int64(x.count) * weight
					total += int64(x.count) * weight
					seen[[2]int64{int64(x.row), int64(x.column)}] = append(seen[[2]int64{int64(x.row), int64(x.column)}], x)
				}
			}
			require.Len(t, plan.shares, count, "%v", p)
			require.LessOrEqual(t, count, 3*mostClusters, "%v", p)
			require.Len(t, seen, int(plan.down*plan.across), "%v", p)
			tiles := map[[2]int64]wgmmaTile{}
			for _, x := range plan.tiles {
				tiles[[2]int64{int64(x.row), int64(x.column)}] = x
			}
			places := map[int]bool{}
			for at, list := range seen {
				tile, cut := tiles[at]
				slices.SortFunc(list, func(x, y wgmmaShare) int { return int(x.first) - int(y.first) })
				require.Equal(t, cut, len(list) > 1, "%v", p)
				end := 0
				for i, x := range list {
					require.True(t, int(x.first) == end && x.count > 0, "%v: %+v", p, list)
					end += int(x.count)
					if place := int(tile.first) + i; cut {
						require.True(t, int(x.place) == place && !places[place], "%v: %+v", p, list)
						places[place] = true
					} else {
						require.EqualValues(t, -1, x.place)
					}
				}
				require.EqualValues(t, plan.steps, end, "%v", p)
			}
			require.Len(t, places, int(plan.places))
			if plan.places > 0 {
				require.LessOrEqual(t, slices.Max(load), total/plan.clusters+2*fullTile*shortestShare, "%v", p)
			}
		}
	}
}
