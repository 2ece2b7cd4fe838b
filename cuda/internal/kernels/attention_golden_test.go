package kernels_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// compareGoldens runs the branches of golden cases on dev in float32. The golden loss is sum(o*r) of the gated sum, so
// that a branch's output has the gradient gate*r.
func compareGoldens(t *testing.T, dev device, goldens []testutil.Golden) {
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
		for i, gpu := range dev.gpus() {
			t.Run(fmt.Sprintf("%s/tiles%d", g.Name, i), func(t *testing.T) {
				dq := ref.New(c.B, c.S, c.Hq, c.D)
				for gate, x := range []problem{cmp, sel, window} {
					name := []string{"cmp", "sel", "win"}[gate]
					x.q, x.do = of("q"), of("r").Clone()
					for i := range x.do.Data {
						x.do.Data[i] *= g.F64(t, "gates")[i/c.Dv*3+gate]
					}
					got := attend(t, dev, gpu, s, x)
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
				require.Equal(t, g.I32(t, "idx"), selectOn(t, dev, gpu, k, s, of("q"), compressed("k_compressed")))
			})
		}
	}
}

// TestAttentionUnsupported: sizes that no tile takes, and sizes that do not fit each other, are *Unsupported.
func TestAttentionUnsupported(t *testing.T) {
	good := kernels.Attention{
		Type: kernels.F32, GPU: kernels.GPU{SharedPerBlock: 99 << 10, SharedPerSM: 100 << 10, SMs: 1},
		B: 1, S: 10, T: 10, Hq: 4, Hkv: 2, D: 256, Dv: 256,
	}
	run := func(change func(a *kernels.Attention)) error {
		a := good
		change(&a)
		_, err := a.Causal().Backward(nil, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
		return err
	}
	require.NoError(t, run(func(*kernels.Attention) {}))
	for want, change := range map[string]func(a *kernels.Attention){
		"kernels: span attention: heads 4 not a multiple of kv heads 3":                                      func(a *kernels.Attention) { a.Hkv = 3 },
		"kernels: span attention: queries is 0, want at least 1":                                             func(a *kernels.Attention) { a.S = 0 },
		"kernels: span attention: the smallest tiles take 166400 bytes of shared memory, a block has 101376": func(a *kernels.Attention) { a.D, a.Dv = 512, 512 },
		"kernels: span attention: queries times heads of a group: 8589934592, want less than 2^31":           func(a *kernels.Attention) { a.S = 1 << 32 },
	} {
		err := run(change)
		var u *kernels.Unsupported
		require.ErrorAs(t, err, &u)
		require.EqualError(t, err, want)
	}
}
