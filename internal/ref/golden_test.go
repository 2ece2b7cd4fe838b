package ref_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// tol is the relative error that this package is held to. Both sides are float64; only the order of sums differs.
const tol = 1e-10

// golden returns a float64 tensor of a golden case.
func golden(t *testing.T, g testutil.Golden, name string) *ref.Tensor {
	t.Helper()
	return ref.From(g.F64(t, name), g.Shape(t, name)...)
}

// same checks a result against the golden tensor of that name.
func same(t *testing.T, g testutil.Golden, name string, got *ref.Tensor) {
	t.Helper()
	require.Equal(t, g.Shape(t, name), got.Shape, name)
	testutil.Within(t, name, got.Data, g.F64(t, name), tol)
}

func params(c testutil.Config) ref.Params {
	return ref.Params{BlockLen: c.BlockLen, Stride: c.Stride, SelectBlock: c.SelBlock, TopN: c.TopN, Window: c.Window}
}

func TestNSAMatchesGoldens(t *testing.T) {
	for _, g := range testutil.Goldens(t, testutil.Ops) {
		t.Run(g.Name, func(t *testing.T) {
			in := ref.Inputs{
				Q:    golden(t, g, "q"),
				KCmp: golden(t, g, "k_cmp"), VCmp: golden(t, g, "v_cmp"),
				KSel: golden(t, g, "k_sel"), VSel: golden(t, g, "v_sel"),
				KWin: golden(t, g, "k_win"), VWin: golden(t, g, "v_win"),
				Gates: golden(t, g, "gates"),
			}
			p := params(g.Config)
			out := ref.NSA(in, p)
			require.Equal(t, g.I32(t, "idx"), out.Idx, "idx")
			for name, x := range map[string]*ref.Tensor{
				"k_compressed": out.KC, "v_compressed": out.VC, "score": out.Score,
				"o_cmp": out.OCmp, "o_sel": out.OSel, "o_win": out.OWin, "o": out.O,
				"lse_cmp": out.LSECmp, "lse_sel": out.LSESel, "lse_win": out.LSEWin,
			} {
				same(t, g, name, x)
			}
			// The golden loss is sum(o * r).
			d := ref.NSAGrad(in, p, out, golden(t, g, "r"))
			for name, x := range map[string]*ref.Tensor{
				"q": d.Q, "k_cmp": d.KCmp, "v_cmp": d.VCmp, "k_sel": d.KSel, "v_sel": d.VSel, "k_win": d.KWin, "v_win": d.VWin,
				"gates": d.Gates,
			} {
				same(t, g, "grad_"+name, x)
			}
		})
	}
}

func tinyConfig(t *testing.T, c testutil.Config) ref.TinyLMConfig {
	require.Contains(t, []string{"mean", "mlp"}, c.Phi)
	require.Equal(t, c.Phi == "mlp", c.PhiHidden > 0)
	return ref.TinyLMConfig{Vocab: c.Vocab, Dim: c.Dim, Layers: c.Layers, Hq: c.Hq, Hkv: c.Hkv, D: c.D, Dv: c.Dv,
		GateHidden: c.GateHidden, PhiHidden: c.PhiHidden, Params: params(c)}
}

func TestTinyLMMatchesGoldens(t *testing.T) {
	for _, g := range testutil.Goldens(t, testutil.TinyLM) {
		t.Run(g.Name, func(t *testing.T) {
			c, tol := tinyConfig(t, g.Config), tol
			if !g.BuiltIn {
				tol = 1e-8 // of any configuration: a norm over one number cancels
			}
			weights := map[string]*ref.Tensor{}
			for name := range g.File.Tensors {
				if short, ok := strings.CutPrefix(name, "param."); ok {
					weights[short] = golden(t, g, name).Clone()
				}
			}
			for name, shape := range ref.TinyLMShapes(c) {
				require.Contains(t, weights, name)
				require.Equal(t, shape, weights[name].Shape, name)
			}
			require.Len(t, ref.TinyLMShapes(c), len(weights))

			tokens := g.I32(t, "tokens") // [steps,B,S]
			batch := g.Config.B * g.Config.S
			logits, loss := ref.TinyLM(c, weights, tokens[:batch], g.Config.B)
			testutil.Within(t, "logits", logits.Data, g.F64(t, "logits"), tol)
			testutil.Within(t, "loss", []float64{loss}, g.F64(t, "loss"), tol)

			var state ref.AdamWState
			var losses, norms []float64
			for step := range len(tokens) / batch {
				ids := tokens[step*batch : (step+1)*batch]
				_, loss, grads := ref.TinyLMGrad(c, weights, ids, g.Config.B)
				if step == 0 {
					require.Equal(t, slices.Sorted(maps.Keys(weights)), slices.Sorted(maps.Keys(grads)))
					for name, x := range grads {
						testutil.Within(t, "grad."+name, x.Data, g.F64(t, "grad."+name), tol)
					}
				}
				rate := ref.LearningRate(step, g.Config.LR, g.Config.Warmup, g.Config.Total, g.Config.Floor)
				norms = append(norms, ref.AdamWStep(weights, grads, &state, rate, ref.DefaultAdamW()))
				losses = append(losses, loss)
			}
			require.Equal(t, fmt.Sprint(g.Shape(t, "losses")), fmt.Sprint([]int{len(losses)}))
			testutil.Within(t, "losses", losses, g.F64(t, "losses"), tol)
			testutil.Within(t, "grad_norms", norms, g.F64(t, "grad_norms"), tol)
		})
	}
}
