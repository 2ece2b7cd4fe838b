package kernels_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// compareGoldens runs the branches of golden cases on dev in float32. The golden loss is sum(o*r) of the gated sum, so
// that a branch's output has the gradient gate*r.
func compareGoldens(t *testing.T, dev attentionDevice, goldens []testutil.Golden) {
	s := storages[0]
	for _, g := range goldens {
		c := g.Config
		of := func(name string) *ref.Tensor { return ref.From(g.F64(t, name), g.Shape(t, name)...) }
		compressed := func(name string) *ref.Tensor {
			x := of(name)
			if x.Shape[1] == 0 {
				return ref.New(x.Shape[0], 1, x.Shape[2], x.Shape[3])
			}
			return x
		}
		k := attentionCase{c.B, c.S, c.Hq, c.Hkv, c.D, c.Dv, c.BlockLen, c.Stride, c.SelBlock, c.TopN, c.Window, false}
		list := problems(k, s)
		window, cmp, sel := list[0], list[2], list[3]
		window.k, window.v = of("k_win"), of("v_win")
		cmp.k, cmp.v = compressed("k_compressed"), compressed("v_compressed")
		sel.k, sel.v, sel.idx = of("k_sel"), of("v_sel"), g.I32(t, "idx")
		for i, v := range dev.variants() {
			t.Run(fmt.Sprintf("%s/tiles%d", g.Name, i), func(t *testing.T) {
				dq := ref.New(c.B, c.S, c.Hq, c.D)
				for gate, x := range []problem{cmp, sel, window} {
					name := []string{"cmp", "sel", "win"}[gate]
					x.q, x.do = of("q"), of("r").Clone()
					for i := range x.do.Data {
						x.do.Data[i] *= g.F64(t, "gates")[i/c.Dv*3+gate]
					}
					got := attend(t, dev, v, s, x)
					testutil.Within(t, "o_"+name, s.decode(got[0]), g.F64(t, "o_"+name), 1e-5)
					testutil.Within(t, "lse_"+name, s.decode(got[1]), g.F64(t, "lse_"+name), 1e-5)
					dq = ref.Add(dq, ref.From(s.decode(got[2]), dq.Shape...))
					dk, dv := ref.From(s.decode(got[3]), x.k.Shape...), ref.From(s.decode(got[4]), x.v.Shape...)
					if name == "cmp" {
						if c.S < c.BlockLen {
							dk, dv = ref.New(c.B, 0, c.Hkv, c.D), ref.New(c.B, 0, c.Hkv, c.Dv)
						}
						dk, dv = ref.CompressMeanGrad(dk, c.S, c.BlockLen, c.Stride), ref.CompressMeanGrad(dv, c.S, c.BlockLen, c.Stride)
					}
					testutil.Within(t, "grad_k_"+name, dk.Data, g.F64(t, "grad_k_"+name), 1e-5)
					testutil.Within(t, "grad_v_"+name, dv.Data, g.F64(t, "grad_v_"+name), 1e-5)
				}
				testutil.Within(t, "grad_q", dq.Data, g.F64(t, "grad_q"), 1e-5)
				require.Equal(t, g.I32(t, "idx"), selectOn(t, dev, v, k, s, of("q"), compressed("k_compressed")))
			})
		}
	}
}

// attentionSite returns operands q, k, v -> o, lse, or those of the gradient.
func attentionSite(typ kernels.Type, gradient bool, B, S, T, Hq, Hkv, D, Dv int) graph.Site {
	f := func(dt tensor.Dtype, shape ...int) ops.Operand { return ops.Operand{Dtype: dt, Shape: shape} }
	dt := dtypes[typ]
	q, k, v := f(dt, B, S, Hq, D), f(dt, B, T, Hkv, D), f(dt, B, T, Hkv, Dv)
	o, lse := f(dt, B, S, Hq, Dv), f(tensor.Float32, B, Hq, S)
	if gradient {
		return graph.Site{In: []ops.Operand{q, k, v, o, lse, o}, Out: []ops.Operand{q, k, v}}
	}
	return graph.Site{In: []ops.Operand{q, k, v}, Out: []ops.Operand{o, lse}}
}

// TestAttentionUnsupported: sizes that no tile takes, and sizes that do not fit each other, are refused.
func TestAttentionUnsupported(t *testing.T) {
	small := kernels.GPU{SharedPerBlock: 99 << 10, SharedPerSM: 100 << 10, SMs: 1}
	for _, x := range []struct {
		S, Hkv, D int
		want      string
	}{
		{10, 2, 256, ""},
		{10, 3, 256, "unsupported shape: heads 4 not a multiple of kv heads 3"},
		{0, 2, 256, "unsupported shape: operand 0 is float32 (1, 0, 4, 256), want 1 to 2^56 elements"},
		{10, 2, 512, "unsupported shape: the smallest tiles take 166400 bytes of shared memory, a block has 101376"},
		{1 << 32, 2, 256, "unsupported shape: queries times heads of a group: 8589934592, want less than 2^31"},
	} {
		_, err := planOf(small, "cuda", ops.SlidingWindowGradOp{Window: 1 << 62}, attentionSite(kernels.F32, true, 1, x.S, 10, 4, x.Hkv, x.D, x.D))
		if x.want == "" {
			require.NoError(t, err)
			continue
		}
		var u *graph.Unsupported
		require.ErrorAs(t, err, &u)
		require.EqualError(t, err, x.want)
	}
}
