package ops_test

import (
	"fmt"
	"testing"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// goldenArray is a float tensor of a golden, under a name for the graph.
func goldenArray(t *testing.T, g testutil.Golden, name string) array {
	return array{Name: name, Shape: g.Shape(t, name), Floats: g.F64(t, name)}
}

// TestNSAMatchesGoldens: all three branches with compression, selection and gates in one graph, and the gradients of all
// its inputs. In float32 the selection is that of the golden: scores that nearly tie may be rounded either way.
func TestNSAMatchesGoldens(t *testing.T) {
	names := []string{"q", "k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win", "gates"}
	for _, g := range testutil.Goldens(t, testutil.Ops) {
		c := g.Config
		p := ops.Params{BlockLen: c.BlockLen, Stride: c.Stride, SelectBlock: c.SelBlock, TopN: c.TopN, Window: c.Window}
		var inputs []array
		for _, name := range names {
			inputs = append(inputs, goldenArray(t, g, name))
		}
		inputs = append(inputs, array{Name: "idx", Shape: g.Shape(t, "idx"), Ints: g.I32(t, "idx")})
		for vm := range vms {
			for _, dt := range dtypes {
				t.Run(fmt.Sprint(g.Name, "/", vm, "/", dt), func(t *testing.T) {
					nsa := func(in []*G.Node) (*G.Node, error) {
						q, idx := in[0], in[8]
						kc := G.Must(ops.CompressMean(in[1], p.BlockLen, p.Stride))
						vc := G.Must(ops.CompressMean(in[2], p.BlockLen, p.Stride))
						compressed := G.Must(ops.CompressedAttention(q, kc, vc, p.BlockLen, p.Stride))
						if dt == tensor.Float64 {
							idx = G.Must(ops.SelectBlocks(q, kc, G.Must(ops.LSE(compressed)), p))
						}
						selected := G.Must(ops.SelectedAttention(q, in[3], in[4], idx, p.SelectBlock))
						window := G.Must(ops.SlidingWindow(q, in[5], in[6], p.Window))
						return ops.GatedSum(in[7], compressed, selected, window)
					}
					res := evaluate(t, vm, dt, nsa, g.F64(t, "r"), inputs...)
					testutil.Within(t, "o", res.out, g.F64(t, "o"), tolerance(dt))
					for _, name := range names {
						testutil.Within(t, "grad_"+name, res.grads[name], g.F64(t, "grad_"+name), tolerance(dt))
					}
				})
			}
		}
	}
}
