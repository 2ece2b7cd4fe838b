package ops_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// goldenArray is a float tensor of a golden, under a name for the graph.
func goldenArray(t *testing.T, g testutil.Golden, name string) array {
	return array{Name: name, Shape: g.Shape(t, name), Floats: g.F64(t, name)}
}

// goldenCompressed is a compressed tensor of a golden; where the golden has no block, the one row that nobody sees.
func goldenCompressed(t *testing.T, g testutil.Golden, name string) array {
	a := goldenArray(t, g, name)
	if a.Shape[1] == 0 {
		a.Shape = []int{a.Shape[0], 1, a.Shape[2], a.Shape[3]}
		a.Floats = make([]float64, a.Shape[0]*a.Shape[2]*a.Shape[3])
	}
	return a
}

// goldenBranch is a branch of a golden case: what it is built of, and the names of what it must give.
type goldenBranch struct {
	build        build
	inputs       []array
	gate         int // index of its gate
	o, lse       string
	gradK, gradV string
	compressed   bool
}

func goldenBranches(t *testing.T, g testutil.Golden) []goldenBranch {
	c := g.Config
	q := goldenArray(t, g, "q")
	return []goldenBranch{
		{
			func(in []*G.Node) (*G.Node, error) {
				return ops.CompressedAttention(in[0], in[1], in[2], c.BlockLen, c.Stride)
			},
			[]array{q, goldenCompressed(t, g, "k_compressed"), goldenCompressed(t, g, "v_compressed")},
			0, "o_cmp", "lse_cmp", "grad_k_cmp", "grad_v_cmp", true,
		},
		{
			func(in []*G.Node) (*G.Node, error) {
				return ops.SelectedAttention(in[0], in[1], in[2], in[3], c.SelBlock)
			},
			[]array{q, goldenArray(t, g, "k_sel"), goldenArray(t, g, "v_sel"), {Name: "idx", Shape: g.Shape(t, "idx"), Ints: g.I32(t, "idx")}},
			1, "o_sel", "lse_sel", "grad_k_sel", "grad_v_sel", false,
		},
		{
			func(in []*G.Node) (*G.Node, error) { return ops.SlidingWindow(in[0], in[1], in[2], c.Window) },
			[]array{q, goldenArray(t, g, "k_win"), goldenArray(t, g, "v_win")},
			2, "o_win", "lse_win", "grad_k_win", "grad_v_win", false,
		},
	}
}

// lseOf is build followed by LSE.
func lseOf(b build) build {
	return func(in []*G.Node) (*G.Node, error) {
		o, err := b(in)
		if err != nil {
			return nil, err
		}
		return ops.LSE(o)
	}
}

// TestAttentionMatchesGoldens: outputs, LSE and gradients of the three branches in graphs. The golden loss is
// sum(o*r) of the gated sum, so that a branch's output has the gradient gate*r.
func TestAttentionMatchesGoldens(t *testing.T) {
	for _, g := range testutil.Goldens(t, testutil.Ops) {
		for vm := range vms {
			for _, dt := range dtypes {
				t.Run(fmt.Sprint(g.Name, "/", vm, "/", dt), func(t *testing.T) {
					tol := tolerance(dt)
					dq := make([]float64, len(g.F64(t, "q")))
					for _, b := range goldenBranches(t, g) {
						r, gates := g.F64(t, "r"), g.F64(t, "gates")
						do := make([]float64, len(r))
						for i := range do {
							do[i] = r[i] * gates[i/g.Config.Dv*3+b.gate]
						}
						res := evaluate(t, vm, dt, b.build, do, b.inputs...)
						testutil.Within(t, b.o, res.out, g.F64(t, b.o), tol)
						lse := evaluate(t, vm, dt, lseOf(b.build), nil, b.inputs...)
						testutil.Within(t, b.lse, lse.out, g.F64(t, b.lse), tol)

						dk, dv := res.grads[b.inputs[1].Name], res.grads[b.inputs[2].Name]
						if b.compressed {
							dk, dv = meanGrad(g, b.inputs[1].Shape, dk), meanGrad(g, b.inputs[2].Shape, dv)
						}
						testutil.Within(t, b.gradK, dk, g.F64(t, b.gradK), tol)
						testutil.Within(t, b.gradV, dv, g.F64(t, b.gradV), tol)
						cpu.Add(dq, dq, res.grads["q"])
					}
					testutil.Within(t, "grad_q", dq, g.F64(t, "grad_q"), tol)
				})
			}
		}
	}
}

// meanGrad takes a gradient of block means back to the tokens.
func meanGrad(g testutil.Golden, shape []int, grad []float64) []float64 {
	c, dy := g.Config, ref.From(grad, shape...)
	if c.S < c.BlockLen {
		dy = ref.New(shape[0], 0, shape[2], shape[3])
	}
	return ref.CompressMeanGrad(dy, c.S, c.BlockLen, c.Stride).Data
}

// TestSelectBlocksMatchesGoldens: the very indices, in float64.
func TestSelectBlocksMatchesGoldens(t *testing.T) {
	for _, g := range testutil.Goldens(t, testutil.Ops) {
		for vm := range vms {
			t.Run(g.Name+"/"+vm, func(t *testing.T) {
				c := g.Config
				p := ops.Params{BlockLen: c.BlockLen, Stride: c.Stride, SelectBlock: c.SelBlock, TopN: c.TopN, Window: c.Window}
				res := evaluate(t, vm, tensor.Float64, func(in []*G.Node) (*G.Node, error) {
					o := G.Must(ops.CompressedAttention(in[0], in[1], in[2], p.BlockLen, p.Stride))
					return ops.SelectBlocks(in[0], in[1], G.Must(ops.LSE(o)), p)
				}, nil, goldenArray(t, g, "q"), goldenCompressed(t, g, "k_compressed"), goldenCompressed(t, g, "v_compressed"))
				got := make([]int32, len(res.out))
				for i, j := range res.out {
					got[i] = int32(j)
				}
				require.Equal(t, g.I32(t, "idx"), got)
			})
		}
	}
}
