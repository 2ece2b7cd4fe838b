package ops_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// goldenArray is a float tensor of a golden, under a name for the graph.
func goldenArray(t *testing.T, g testutil.Golden, name string) array {
	return array{Name: name, Shape: g.Shape(t, name), Floats: g.F64(t, name)}
}

// TestNSAMatchesGoldens: all three branches with compression, selection and gates in one graph, and each branch by itself, with
// the gradients of all inputs. The selection is that of the golden where a branch is alone, and in float32: scores that nearly
// tie may be rounded either way.
func TestNSAMatchesGoldens(t *testing.T) {
	for _, g := range testutil.Goldens(t, testutil.Ops) {
		c := g.Config
		p := ops.Params{BlockLen: c.BlockLen, Stride: c.Stride, SelectBlock: c.SelBlock, TopN: c.TopN, Window: c.Window}
		q, gates, r := goldenArray(t, g, "q"), goldenArray(t, g, "gates"), g.F64(t, "r")
		idx := array{Name: "idx", Shape: g.Shape(t, "idx"), Ints: g.I32(t, "idx")}
		branches := []struct {
			name  string
			build func(q, k, v, idx *G.Node) (*G.Node, error)
		}{
			{"cmp", func(q, k, v, _ *G.Node) (*G.Node, error) {
				kc, vc := G.Must(ops.CompressMean(k, p.BlockLen, p.Stride)), G.Must(ops.CompressMean(v, p.BlockLen, p.Stride))
				return ops.CompressedAttention(q, kc, vc, p.BlockLen, p.Stride)
			}},
			{"sel", func(q, k, v, idx *G.Node) (*G.Node, error) { return ops.SelectedAttention(q, k, v, idx, p.SelectBlock) }},
			{"win", func(q, k, v, _ *G.Node) (*G.Node, error) { return ops.SlidingWindow(q, k, v, p.Window) }},
		}
		inputs := []array{q, gates, idx}
		for _, b := range branches {
			inputs = append(inputs, goldenArray(t, g, "k_"+b.name), goldenArray(t, g, "v_"+b.name))
		}
		for vm := range vms {
			for _, dt := range dtypes {
				t.Run(fmt.Sprint(g.Name, "/", vm, "/", dt), func(t *testing.T) {
					matches := func(name string, got []float64) { testutil.Within(t, name, got, g.F64(t, name), tolerance(dt)) }
					res := evaluate(t, vm, dt, func(in []*G.Node) (*G.Node, error) {
						q, idx := in[0], in[2]
						compressed := G.Must(branches[0].build(q, in[3], in[4], nil))
						if dt == tensor.Float64 {
							kc := G.Must(ops.CompressMean(in[3], p.BlockLen, p.Stride))
							idx = G.Must(ops.SelectBlocks(q, kc, G.Must(ops.LSE(compressed)), p))
						}
						selected, window := G.Must(branches[1].build(q, in[5], in[6], idx)), G.Must(branches[2].build(q, in[7], in[8], nil))
						return ops.GatedSum(in[1], compressed, selected, window)
					}, r, inputs...)
					matches("o", res.out)
					for name, grad := range res.grads {
						matches("grad_"+name, grad)
					}

					dq := make([]float64, len(q.Floats))
					for i, b := range branches {
						do := make([]float64, len(r))
						for j := range do {
							do[j] = gates.Floats[j/c.Dv*3+i] * r[j]
						}
						k, v := inputs[3+2*i], inputs[4+2*i]
						var lse G.Value
						res := evaluate(t, vm, dt, func(in []*G.Node) (*G.Node, error) {
							o, err := b.build(in[0], in[1], in[2], in[3])
							if err == nil {
								G.Read(G.Must(ops.LSE(o)), &lse)
							}
							return o, err
						}, do, q, k, v, idx)
						matches("o_"+b.name, res.out)
						matches("lse_"+b.name, testutil.Floats(t, lse.Data()))
						matches("grad_"+k.Name, res.grads[k.Name])
						matches("grad_"+v.Name, res.grads[v.Name])
						cpu.Add(dq, dq, res.grads[q.Name])
					}
					matches("grad_q", dq)
				})
			}
		}
	}
}

// TestCompressedAttentionOfTokens: with blocks of one token compressed attention has the bits of dense attention.
func TestCompressedAttentionOfTokens(t *testing.T) {
	c := newSizes(2, 300, 6, 2, 16, 12)
	list := opcases.Branches(c, ops.Params{BlockLen: 1, Stride: 1, SelectBlock: 4, TopN: 3, Window: 1})
	dense, compressed, do := list[1], list[2], normal("do", 9, c.B, c.S, c.Hq, c.Dv)
	compressed.Inputs = dense.Inputs
	for _, dt := range dtypes {
		o, grads := run(t, dense, dt, do)
		oc, gradsc := run(t, compressed, dt, do)
		require.Equal(t, o, oc)
		require.Equal(t, grads, gradsc)
	}
}
