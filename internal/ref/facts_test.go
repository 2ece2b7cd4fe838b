package ref_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/ref"
)

// TestSelectBlocksInvariants checks every row: ascending, padded at the end, the forced blocks in it, none after the
// query's own, as many as there are up to n, and no block left out that scored better than a free one.
func TestSelectBlocksInvariants(t *testing.T) {
	const B, S, Hkv, l, d, lp, n = 2, 150, 2, 8, 4, 16, 5
	q, k := random(1, B, S, 6, 4), random(2, B, S, Hkv, 4)
	idx, score := ref.SelectBlocks(q, ref.CompressMean(k, l, d), l, d, lp, n)
	for i := 0; i < len(idx); i += n {
		row := idx[i : i+n]
		group, tok := i/n%Hkv, i/n/Hkv%S
		s := score.Row(i/n/Hkv/S, tok, group)
		own := tok / lp
		count := min(n, own+1)
		in := map[int]bool{}
		for j, blk := range row {
			if j >= count {
				require.Equal(t, int32(-1), blk)
				continue
			}
			require.True(t, blk >= 0 && int(blk) <= own && (j == 0 || row[j-1] < blk), "row %v of token %d", row, tok)
			in[int(blk)] = true
		}
		require.True(t, in[0] && in[own] && in[max(0, own-1)], "row %v of token %d", row, tok)
		worst := math.Inf(1)
		for j := 1; j < own-1; j++ {
			if in[j] {
				worst = min(worst, s[j])
			}
		}
		for j := 1; j < own-1; j++ {
			require.True(t, in[j] || s[j] <= worst, "token %d: block %d", tok, j)
		}
	}
}

// TestScoresSumToGroup: a query's softmax sums to one a head, and a compression block's fold weights to l/d, so that a
// row of scores sums to h l/d, or to 0 where nothing is visible.
func TestScoresSumToGroup(t *testing.T) {
	const S, h, l, d, lp = 70, 3, 8, 4, 16
	_, score := ref.SelectBlocks(random(1, 1, S, h, 4), ref.CompressMean(random(2, 1, S, 1, 4), l, d), l, d, lp, 4)
	for tok := range S {
		var sum float64
		for _, v := range score.Row(0, tok, 0) {
			sum += v
		}
		want := float64(h) * l / d
		if tok < l-1 {
			want = 0
		}
		require.InDelta(t, want, sum, 1e-12, "token %d", tok)
	}
}

func TestEmptyRows(t *testing.T) {
	const B, S, Hq, Hkv, D, Dv, l, d = 2, 9, 4, 2, 4, 3, 6, 2
	q, k, v := random(1, B, S, Hq, D), random(2, B, S, Hkv, D), random(3, B, S, Hkv, Dv)
	kc, vc := ref.CompressMean(k, l, d), ref.CompressMean(v, l, d)
	mask := ref.CompressedMask(l, d)
	o, lse := ref.Attention(q, kc, vc, mask)
	dq, _, _ := ref.AttentionGrad(q, kc, vc, o, random(4, B, S, Hq, Dv), mask)
	for b := range B {
		for tok := range S {
			for h := range Hq {
				empty := tok < l-1
				require.Equal(t, empty, math.IsInf(lse.At(b, h, tok), -1))
				require.Equal(t, empty, o.At(b, tok, h, 0) == 0)
				require.Equal(t, tok < l-1+d, dq.At(b, tok, h, 0) == 0) // one key: its p is 1 whatever q is
			}
		}
	}
	// No key at all: T = 0.
	none := ref.New(B, 0, Hkv, D)
	o, _ = ref.Attention(q, none, ref.New(B, 0, Hkv, Dv), mask)
	require.Equal(t, []int{B, S, Hq, Dv}, o.Shape)
	require.Equal(t, make([]float64, len(o.Data)), o.Data)
	dq, dk, dv := ref.AttentionGrad(q, none, ref.New(B, 0, Hkv, Dv), o, o, mask)
	require.Equal(t, make([]float64, len(q.Data)), dq.Data)
	require.Empty(t, dk.Data)
	require.Empty(t, dv.Data)
}
