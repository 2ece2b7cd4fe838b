package ref_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// The cases of this file are worked out by hand; the comments show the arithmetic.

const handTol = 1e-14

func vec(x ...float64) *ref.Tensor { return ref.From(x, len(x)) }

// seq is one batch and one head of dimension 1: [1,S,1,1].
func seq(x ...float64) *ref.Tensor { return ref.From(x, 1, len(x), 1, 1) }

func is(t *testing.T, what string, got *ref.Tensor, want ...float64) {
	t.Helper()
	testutil.Within(t, what, got.Data, want, handTol)
}

func TestBlockCounts(t *testing.T) {
	for _, c := range []struct{ S, l, d, want int }{
		{0, 4, 2, 0}, {3, 4, 2, 0}, {4, 4, 2, 1}, {5, 4, 2, 1}, {6, 4, 2, 2}, {2048, 32, 16, 127}, {7, 1, 1, 7}, {9, 3, 3, 3},
	} {
		require.Equal(t, c.want, ref.NumCompressed(c.S, c.l, c.d), "%+v", c)
	}
	for tok := range 40 { // against the definition: block i is visible when its last token i*d + l - 1 is not after tok
		want := 0
		for i := 0; i*4+8-1 <= tok; i++ {
			want++
		}
		require.Equal(t, want, ref.NumVisible(tok, 8, 4), "token %d", tok)
	}
}

func TestCompressMean(t *testing.T) {
	x := seq(1, 2, 4, 8, 16, 32) // l = 4, d = 2: tokens 0-3 and 2-5
	is(t, "y", ref.CompressMean(x, 4, 2), 15./4, 60./4)
	// Tokens 2 and 3 are in both blocks: (4+8)/4. A token after the last block, the seventh, gets nothing.
	is(t, "dx", ref.CompressMeanGrad(seq(4, 8), 7, 4, 2), 1, 1, 3, 3, 2, 2, 0)
}

func TestCompressMLP(t *testing.T) {
	// One block (1, 2) of D = 1 plus pe (0.5, 1.5) is (1.5, 3.5); w1 = (2, -1) gives -0.5; w2 = 3.
	s := 1 / (1 + math.Exp(0.5)) // sigmoid(-0.5)
	pe, w1, w2 := ref.From([]float64{0.5, 1.5}, 2, 1), ref.From([]float64{2, -1}, 1, 2), ref.From([]float64{3}, 1, 1)
	is(t, "y", ref.CompressMLP(seq(1, 2, 9), 2, 2, pe, w1, w2), 3*-0.5*s)
	dx, dpe, dw1, dw2 := ref.CompressMLPGrad(seq(1, 2, 9), 2, 2, pe, w1, w2, seq(1))
	ds := s * (1 - 0.5*(1-s)) // derivative of silu at -0.5
	is(t, "dx", dx, 3*ds*2, 3*ds*-1, 0)
	is(t, "dpe", dpe, 3*ds*2, 3*ds*-1)
	is(t, "dw1", dw1, 3*ds*1.5, 3*ds*3.5)
	is(t, "dw2", dw2, -0.5*s)
}

func TestAttention(t *testing.T) {
	// D = 1, q = 1, logits 0 and ln 3: the second query has p = (1/4, 3/4), o = 1/4 + 3/4 * 5 = 4, lse = ln 4.
	q, k, v := seq(1, 1), seq(0, math.Log(3)), seq(1, 5)
	o, lse := ref.Attention(q, k, v, ref.CausalMask())
	is(t, "o", o, 1, 4)
	is(t, "lse", lse, 0, math.Log(4))
	// do = 1: delta = 4, dp = (1, 5), ds = (1/4 (1-4), 3/4 (5-4)); the first query's ds is 0, its p is 1.
	dq, dk, dv := ref.AttentionGrad(q, k, v, o, seq(1, 1), ref.CausalMask())
	is(t, "dq", dq, 0, 0.75*math.Log(3))
	is(t, "dk", dk, -0.75, 0.75)
	is(t, "dv", dv, 1.25, 0.75)
}

func TestAttentionGroupsAndScale(t *testing.T) {
	// Four query heads on two groups, D = 4, one token: o is the group's value, the logit is q·k/2.
	q, k := ref.New(1, 1, 4, 4), ref.New(1, 1, 2, 4)
	for i := range q.Data {
		q.Data[i] = float64(i / 4) // head
	}
	for i := range k.Data {
		k.Data[i] = float64(1 + i/4) // 1 + group
	}
	o, lse := ref.Attention(q, k, ref.From([]float64{7, 9}, 1, 1, 2, 1), ref.CausalMask())
	is(t, "o", o, 7, 7, 9, 9)
	is(t, "lse", lse, 0*4*1/2., 1*4*1/2., 2*4*2/2., 3*4*2/2.)
}

func TestMasks(t *testing.T) {
	picture := func(m ref.Mask, S, T int) (rows []string) {
		for i := range S {
			row := ""
			for s := range T {
				if m(0, 0, i, s) {
					row += "x"
				} else {
					row += "."
				}
			}
			rows = append(rows, row)
		}
		return rows
	}
	require.Equal(t, []string{"x..", "xx.", "xxx"}, picture(ref.CausalMask(), 3, 3))
	require.Equal(t, []string{"x...", "xx..", ".xx.", "..xx"}, picture(ref.WindowMask(2), 4, 4))
	require.Equal(t, []string{"x..", ".x.", "..x"}, picture(ref.WindowMask(1), 3, 3))
	// l = 2, d = 1: block i ends at token i+1.
	require.Equal(t, []string{"...", "x..", "xx.", "xxx"}, picture(ref.CompressedMask(2, 1), 4, 3))
	// l' = 2, n = 2. A block in the future shows nothing. Of the query's own block, the tokens up to the query are shown.
	idx := []int32{0, -1, 0, 2, 1, -1, 0, 1, -1, -1}
	require.Equal(t, []string{"x....", "xx...", "..x..", "xxxx.", "....."},
		picture(ref.SelectedMask(idx, 1, 5, 1, 2), 5, 5))
	// Masks that show everything up to the query are causal.
	all := slices.Repeat([]int32{0, 1, 2}, 5)
	for _, m := range []ref.Mask{ref.WindowMask(5), ref.CompressedMask(1, 1), ref.SelectedMask(all, 1, 5, 1, 2)} {
		require.Equal(t, picture(ref.CausalMask(), 5, 5), picture(m, 5, 5))
	}
}

func TestFoldMatrix(t *testing.T) {
	// l = 4, d = 2, l' = 4: blocks [0,4), [2,6), [4,8) on selection blocks [0,4), [4,8), [8,9); overlap over d.
	m := ref.FoldMatrix(9, 4, 2, 4)
	require.Equal(t, []int{3, 3}, m.Shape)
	is(t, "fold", m, 2, 0, 0, 1, 1, 0, 0, 2, 0)
	// The paper's sizes, l = 32, d = 16, l' = 64: equation 9 weighs the blocks 4j-1 .. 4j+3 with 1 2 2 2 1.
	m = ref.FoldMatrix(160, 32, 16, 64)
	for i, want := range []float64{0, 0, 0, 1, 2, 2, 2, 1, 0} {
		require.Equal(t, want, m.Row(i)[1], "block %d", i)
	}
}

func TestSelectBlocks(t *testing.T) {
	// l = d = l' = 1: compressed blocks, selection blocks and tokens are the same, the score is the softmax itself.
	zero := seq(0, 0, 0, 0, 0, 0, 0, 0)
	idx, score := ref.SelectBlocks(zero, zero, 1, 1, 1, 4)
	require.Equal(t, []int32{
		0, -1, -1, -1,
		0, 1, -1, -1,
		0, 1, 2, -1,
		0, 1, 2, 3,
		0, 1, 3, 4, // forced 0, 3, 4; of the equal rest the lower index
		0, 1, 4, 5,
		0, 1, 5, 6,
		0, 1, 6, 7,
	}, idx)
	is(t, "score of token 3", ref.From(score.Row(0, 3, 0), 8), .25, .25, .25, .25, 0, 0, 0, 0)

	// Key 4 is the best, then 2, then 3: with n = 5 two of them are free.
	one := seq(1, 1, 1, 1, 1, 1, 1, 1)
	idx, _ = ref.SelectBlocks(one, seq(9, 0, 2, 1, 3, 0, 9, 9), 1, 1, 1, 5)
	require.Equal(t, []int32{0, 2, 4, 6, 7}, idx[35:])
	require.Equal(t, []int32{0, 2, 3, 4, 5}, idx[25:30])

	// A group of two heads with q = 1 and -1: the logits are ±k. The sum over the heads favours the extremes, key 1 (5)
	// and key 3 (-5).
	q := ref.New(1, 8, 2, 1)
	for i := range q.Data {
		q.Data[i] = 1 - 2*float64(i%2)
	}
	idx, score = ref.SelectBlocks(q, seq(0, 5, 0, -5, 0, 0, 0, 0), 1, 1, 1, 5)
	require.Equal(t, []int32{0, 1, 3, 6, 7}, idx[35:])
	z := 6 + math.Exp(5) + math.Exp(-5)
	require.InDelta(t, (math.Exp(5)+math.Exp(-5))/z, score.Row(0, 7, 0)[1], handTol)
}

func TestGatedSum(t *testing.T) {
	gates := ref.From([]float64{1, 2, 3, 0, -1, 1}, 1, 1, 2, 3)
	heads := func(x ...float64) *ref.Tensor { return ref.From(x, 1, 1, 2, 1) }
	a, b, c := heads(1, 10), heads(2, 20), heads(3, 30)
	is(t, "o", ref.GatedSum(gates, a, b, c), 1+4+9, 0-20+30)
	dg, do := ref.GatedSumGrad(gates, heads(1, 2), a, b, c)
	is(t, "dgates", dg, 1, 2, 3, 20, 40, 60)
	is(t, "do cmp", do[0], 1, 0)
	is(t, "do sel", do[1], 2, -2)
	is(t, "do win", do[2], 3, 2)
}

func TestRoPE(t *testing.T) {
	// D = 4, base 100: the pairs turn by t and by t/10; positions 2 and 3 with start 2.
	x := ref.From([]float64{1, 0, 0, 1, 1, 0, 0, 1}, 1, 2, 1, 4)
	c, s := math.Cos, math.Sin
	is(t, "y", ref.RoPE(x, 100, 2), c(2), s(2), -s(.2), c(.2), c(3), s(3), -s(.3), c(.3))
	is(t, "inverse", ref.RoPEGrad(ref.RoPE(x, 100, 2), 100, 2), x.Data...)
}

func TestRMSNorm(t *testing.T) {
	// mean(x²) of (1, 7) is 25; with eps = 11 the root is 6.
	y := ref.RMSNorm(vec(1, 7), vec(2, 3), 11)
	is(t, "y", y, 2./6, 21./6)
	// dy = (3, 2): u = (6, 6), u·x = 48, dx = u/6 - x 48/(2 216).
	dx, dw := ref.RMSNormGrad(vec(1, 7), vec(2, 3), vec(3, 2), 11)
	is(t, "dx", dx, 1-1./9, 1-7./9)
	is(t, "dw", dw, 3./6, 14./6)
}

func TestLinearAndEmbedding(t *testing.T) {
	w, x := ref.From([]float64{1, 2, 3, 4, 5, 6}, 3, 2), ref.From([]float64{1, -1, 2, 0}, 2, 2)
	is(t, "y", ref.Linear(x, w, vec(10, 20, 30)), 9, 19, 29, 12, 26, 40)
	dx, dw, db := ref.LinearGrad(x, w, ref.From([]float64{1, 0, 1, 0, 2, 0}, 2, 3))
	is(t, "dx", dx, 6, 8, 6, 8)
	is(t, "dw", dw, 1, -1, 4, 0, 1, -1)
	is(t, "dbias", db, 1, 2, 1)

	is(t, "rows", ref.Embedding(w, []int32{2, 0, 2}), 5, 6, 1, 2, 5, 6)
	is(t, "dw", ref.EmbeddingGrad(ref.From([]float64{1, 2, 3, 4, 5, 6}, 3, 2), []int32{2, 0, 2}, 3), 3, 4, 0, 0, 6, 8)
}

func TestActivations(t *testing.T) {
	ln3 := math.Log(3)
	is(t, "sigmoid", ref.Sigmoid(vec(0, ln3, -ln3, 1000, -1000)), 0.5, 0.75, 0.25, 1, 0)
	is(t, "silu", ref.SiLU(vec(0, ln3, -ln3, -1000)), 0, 0.75*ln3, -0.25*ln3, 0)
	is(t, "softmax", ref.Softmax(ref.From([]float64{0, ln3, 1000, 1000}, 2, 2)), .25, .75, .5, .5)
}

func TestCrossEntropy(t *testing.T) {
	// Softmax (1/4, 3/4) in every row; losses ln 4, ln(4/3), ignored, ln 4: their mean over three.
	ln3 := math.Log(3)
	x := ref.From([]float64{0, ln3, 0, ln3, 0, ln3, 0, ln3}, 4, 2)
	targets := []int32{0, 1, -1, 0}
	require.InDelta(t, (2*math.Log(4)+math.Log(4./3))/3, ref.CrossEntropy(x, targets), handTol)
	is(t, "d", ref.CrossEntropyGrad(x, targets), -.25, .25, 1./12, -1./12, 0, 0, -.25, .25)

	require.InDelta(t, math.Log(4), ref.CrossEntropy(x, []int32{0, -1, -1, -1}), handTol)

	none := []int32{-1, -1, -1, -1}
	require.Zero(t, ref.CrossEntropy(x, none))
	is(t, "d", ref.CrossEntropyGrad(x, none), make([]float64, 8)...)
}

func TestAdamWStep(t *testing.T) {
	// The first step's corrected moments are g and g²: the update is sign(g), up to eps. Only "w" decays.
	p := map[string]*ref.Tensor{"w": ref.From([]float64{2}, 1, 1), "bias": vec(2), "a.pe": ref.From([]float64{2}, 1, 1)}
	g := map[string]*ref.Tensor{"w": ref.From([]float64{2}, 1, 1), "bias": vec(-1), "a.pe": ref.From([]float64{2}, 1, 1)}
	h := ref.DefaultAdamW()
	h.Eps = 0
	var state ref.AdamWState
	require.InDelta(t, 3, ref.AdamWStep(p, g, &state, 0.1, h), handTol) // sqrt(4+1+4)
	is(t, "w", p["w"], 2-0.1*(1+0.1*2))
	is(t, "bias", p["bias"], 2+0.1)
	is(t, "pe", p["a.pe"], 2-0.1)
	// Clipped to norm 1: the moments hold the scaled gradient.
	scale := 1 / (3 + 1e-6)
	is(t, "m", state.M["bias"], -0.1*scale)
	is(t, "v", state.V["w"], 0.05*4*scale*scale)
	require.Equal(t, 1, state.T)
}

func TestMuonUpdate(t *testing.T) {
	// One row has one singular value, its length, which is scaled to 1. The first polynomial maps 1 to 1, the second
	// maps 1 to 3.
	polynomials := [][3]float64{{2, -1.5, 0.5}, {1, 1, 1}}
	is(t, "update", ref.MuonUpdate(ref.From([]float64{3, 4}, 1, 2), polynomials), 0.6*3*0.2*math.Sqrt2,
		0.8*3*0.2*math.Sqrt2)
	// Two equal singular values, 5, are scaled to 2^(-1/4).
	x := math.Pow(2, -0.25)
	y := 2*x - 1.5*x*x*x + 0.5*x*x*x*x*x
	is(t, "rotation", ref.MuonUpdate(ref.From([]float64{3, 4, -4, 3}, 2, 2), polynomials[:1]),
		0.6*y*0.2*math.Sqrt2, 0.8*y*0.2*math.Sqrt2, -0.8*y*0.2*math.Sqrt2, 0.6*y*0.2*math.Sqrt2)
}

// TestDocumentsByHand: two rows of 8 tokens, with documents of 3, 0 and 5 tokens, and one of 8. Blocks have 2 tokens, 1
// apart.
func TestDocumentsByHand(t *testing.T) {
	x := ref.Documents{B: 2, S: 8, L: 2, D: 1, CU: []int32{0, 3, 3, 8, 16, 16}}
	require.Equal(t, []ref.Document{{0, 0, 3, 0, 2}, {0, 3, 8, 2, 6}, {1, 0, 8, 0, 7}}, x.List())
	seen := func(mask ref.Mask, b, t int) (keys []int) {
		for s := range x.S {
			if mask(b, 0, t, s) {
				keys = append(keys, s)
			}
		}
		return keys
	}
	window := x.Mask(ref.WindowMask(3))
	require.Equal(t, []int{0, 1, 2}, seen(window, 0, 2))
	require.Equal(t, []int{3}, seen(window, 0, 3))
	require.Equal(t, []int{5, 6, 7}, seen(window, 0, 7))
	require.Equal(t, []int{2, 3, 4}, seen(window, 1, 4))
	compressed := x.CompressedMask()
	require.Empty(t, seen(compressed, 0, 0))
	require.Equal(t, []int{0, 1}, seen(compressed, 0, 2))
	require.Empty(t, seen(compressed, 0, 3))
	require.Equal(t, []int{2}, seen(compressed, 0, 4))
	require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6}, seen(compressed, 1, 7))

	idx := make([]int32, x.B*x.S*2)
	for i := range idx {
		idx[i] = []int32{0, -1}[i%2]
	}
	idx[7*2+1] = 1 // token 7: both blocks of 4 tokens of its document [3,8)
	selected := x.SelectedMask(idx, 1, 4)
	require.Equal(t, []int{3, 4, 5, 6}, seen(selected, 0, 6))
	require.Equal(t, []int{3, 4, 5, 6, 7}, seen(selected, 0, 7))
	require.Equal(t, []int{0, 1, 2}, seen(selected, 0, 2))

	tokens := ref.New(2, 8, 1, 1)
	for i := range tokens.Data {
		tokens.Data[i] = float64(i)
	}
	mean := x.Map(tokens, ref.Tokens, ref.Keys, func(x *ref.Tensor) *ref.Tensor { return ref.CompressMean(x, 2, 1) },
		2, 7, 1, 1)
	require.Equal(t, []float64{0.5, 1.5, 3.5, 4.5, 5.5, 6.5, 0, 8.5, 9.5, 10.5, 11.5, 12.5, 13.5, 14.5}, mean.Data)
}
