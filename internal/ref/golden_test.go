package ref_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestNSAMatchesGoldens: compression, the block selection, each branch and the gated sum, and their gradients.
func TestNSAMatchesGoldens(t *testing.T) {
	testutil.EachGolden(t, testutil.Ops, func(t *testing.T, g testutil.Golden) {
		golden := func(name string) *ref.Tensor { return ref.From(g.F64(t, name), g.Shape(t, name)...) }
		same := func(name string, got *ref.Tensor) {
			require.Equal(t, g.Shape(t, name), got.Shape, name)
			g.Within(t, name, got.Data, 1e-10) // only the order of sums differs
		}
		c, q, gates := g.Config, golden("q"), golden("gates")
		kc, vc := ref.CompressMean(golden("k_cmp"), c.BlockLen, c.Stride), ref.CompressMean(golden("v_cmp"),
			c.BlockLen, c.Stride)
		same("k_compressed", kc)
		same("v_compressed", vc)
		idx, score := ref.SelectBlocks(q, kc, c.BlockLen, c.Stride, c.SelBlock, c.TopN)
		opcases.CompareSelection(t, g, idx, 1e-12)
		same("score", score)
		idx = g.I32(t, "idx")
		branches := []struct {
			name string
			k, v *ref.Tensor
			mask ref.Mask
		}{
			{"cmp", kc, vc, ref.CompressedMask(c.BlockLen, c.Stride)},
			{"sel", golden("k_sel"), golden("v_sel"), ref.SelectedMask(idx, c.B, c.S, c.Hkv, c.SelBlock)},
			{"win", golden("k_win"), golden("v_win"), ref.WindowMask(c.Window)},
		}
		var outputs tensors
		for _, b := range branches {
			o, lse := ref.Attention(q, b.k, b.v, b.mask)
			same("o_"+b.name, o)
			same("lse_"+b.name, lse)
			outputs = append(outputs, o)
		}
		same("o", ref.GatedSum(gates, outputs...))

		// The golden loss is sum(o * r).
		dgates, do := ref.GatedSumGrad(gates, golden("r"), outputs...)
		same("grad_gates", dgates)
		var dqs tensors
		for i, b := range branches {
			dq, dk, dv := ref.AttentionGrad(q, b.k, b.v, outputs[i], do[i], b.mask)
			if b.name == "cmp" {
				dk, dv = ref.CompressMeanGrad(dk, c.S, c.BlockLen, c.Stride), ref.CompressMeanGrad(dv, c.S, c.BlockLen, c.Stride)
			}
			same("grad_k_"+b.name, dk)
			same("grad_v_"+b.name, dv)
			dqs = append(dqs, dq)
		}
		same("grad_q", ref.Add(dqs[0], dqs[1:]...))
	})
}
