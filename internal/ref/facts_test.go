package ref_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// randomInputs returns inputs of NSA with compression by the mean.
func randomInputs(B, S, Hq, Hkv, D, Dv int) ref.Inputs {
	return ref.Inputs{
		Q:    random(1, B, S, Hq, D),
		KCmp: random(2, B, S, Hkv, D), VCmp: random(3, B, S, Hkv, Dv),
		KSel: random(4, B, S, Hkv, D), VSel: random(5, B, S, Hkv, Dv),
		KWin: random(6, B, S, Hkv, D), VWin: random(7, B, S, Hkv, Dv),
		Gates: ref.Sigmoid(random(8, B, S, Hq, 3)),
	}
}

// TestMeanSelectedKeys: at S = 2048 the number of keys a query sees follows from the sizes alone. Up to token 1023 the
// n = 16 blocks hold all t+1 tokens; later 15 whole blocks and t%64+1 tokens of the query's own:
// (1024 1025/2 + 1024 960 + 16 64 65/2) / 2048 = 752.5.
func TestMeanSelectedKeys(t *testing.T) {
	const S = 2048
	for seed := range uint64(2) {
		q, k := random(10+seed, 1, S, 1, 2), random(20+seed, 1, S, 1, 2)
		idx, _ := ref.SelectBlocks(q, ref.CompressMean(k, 32, 16), 32, 16, 64, 16)
		require.Equal(t, 752.5, ref.MeanVisible(ref.SelectedMask(idx, 1, S, 1, 64), 1, 1, S, S))
	}
}

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

// TestFullCoverageIsDense: where n covers every block and w every token, both branches are causal attention, and with
// l = d = 1 so is the compressed one.
func TestFullCoverageIsDense(t *testing.T) {
	const B, S = 2, 37
	in := randomInputs(B, S, 4, 2, 4, 3)
	in.KSel, in.KWin, in.VSel, in.VWin = in.KCmp, in.KCmp, in.VCmp, in.VCmp
	p := ref.Params{BlockLen: 1, Stride: 1, SelectBlock: 4, TopN: 10, Window: S}
	out := ref.NSA(in, p)
	o, lse := ref.Attention(in.Q, in.KCmp, in.VCmp, ref.CausalMask())
	for name, branch := range map[string][2]*ref.Tensor{
		"compressed": {out.OCmp, out.LSECmp}, "selected": {out.OSel, out.LSESel}, "window": {out.OWin, out.LSEWin},
	} {
		require.Equal(t, o, branch[0], name)
		require.Equal(t, lse, branch[1], name)
	}
	r := random(9, o.Shape...)
	for i := range in.Gates.Data {
		in.Gates.Data[i] = 1
	}
	d := ref.NSAGrad(in, p, ref.NSA(in, p), r)
	dq, dk, dv := ref.AttentionGrad(in.Q, in.KCmp, in.VCmp, o, r, ref.CausalMask())
	for _, k := range []*ref.Tensor{d.KCmp, d.KSel, d.KWin} {
		require.Equal(t, dk, k)
	}
	for _, v := range []*ref.Tensor{d.VCmp, d.VSel, d.VWin} {
		require.Equal(t, dv, v)
	}
	require.Equal(t, ref.Add(dq, dq, dq), d.Q)
}

// TestNSAIsCausal changes the inputs from token 50 on: what comes before stays bitwise the same, chosen blocks included.
func TestNSAIsCausal(t *testing.T) {
	const S, cut = 80, 50
	p := ref.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 4, Window: 12}
	in := randomInputs(1, S, 4, 2, 4, 4)
	before := ref.NSA(in, p)
	for _, x := range []*ref.Tensor{in.Q, in.KCmp, in.VCmp, in.KSel, in.VSel, in.KWin, in.VWin, in.Gates} {
		for tok := cut; tok < S; tok++ {
			for i := range x.Row(0, tok) {
				x.Row(0, tok)[i] *= -1.5
			}
		}
	}
	after := ref.NSA(in, p)
	require.Equal(t, before.Idx[:cut*2*4], after.Idx[:cut*2*4])
	for tok := range cut {
		require.Equal(t, before.O.Row(0, tok), after.O.Row(0, tok), "token %d", tok)
		require.Equal(t, before.Score.Row(0, tok), after.Score.Row(0, tok), "token %d", tok)
	}
	require.NotEqual(t, before.O.Row(0, cut), after.O.Row(0, cut))
}

// TestArgumentsUnchanged: functions work on copies.
func TestArgumentsUnchanged(t *testing.T) {
	in := randomInputs(1, 30, 2, 1, 4, 4)
	p := ref.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 4, Window: 12}
	out := ref.NSA(in, p)
	o := out.O.Clone()
	ref.NSAGrad(in, p, out, random(9, o.Shape...))
	require.Equal(t, randomInputs(1, 30, 2, 1, 4, 4), in)
	require.Equal(t, o, out.O)
	y := ref.Softmax(in.Q)
	ref.SoftmaxGrad(y, y)
	testutil.Within(t, "softmax", y.Data, ref.Softmax(in.Q).Data, 0)
}
