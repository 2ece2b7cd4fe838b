package ops_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// TestAddGradientsAreApart: the gradients of nested sums are values of their own, so that a solver that zeroes one after
// use leaves the others.
func TestAddGradientsAreApart(t *testing.T) {
	for vm, machine := range vms {
		t.Run(vm, func(t *testing.T) {
			g := G.NewGraph()
			var in G.Nodes
			for i, name := range []string{"a", "b", "c", "d"} {
				in = append(in, normal(name, uint64(i), 2, 3).Node(g, tensor.Float64))
			}
			weights := normal("weights", 9, 2, 3)
			inner := testutil.Must(ops.Add(in[0], in[1]))(t)
			sum := testutil.Must(ops.Add(inner, in[2], in[3]))(t)
			cost := G.Must(G.Sum(G.Must(G.HadamardProd(sum, weights.Node(g, tensor.Float64)))))
			grads := testutil.Must(G.Grad(cost, in...))(t)
			for i, d := range grads {
				require.NotContains(t, grads[:i], d)
			}
			m := testutil.Must(machine(g))(t)
			defer m.Close()
			for range 2 {
				before := testutil.Floats(t, in[3].Value().Data())
				require.NoError(t, m.RunAll())
				solver := G.NewVanillaSolver(G.WithLearnRate(0.5))
				require.NoError(t, solver.Step(G.NodesToValueGrads(in)))
				for i, x := range testutil.Floats(t, in[3].Value().Data()) {
					require.InDelta(t, before[i]-0.5*weights.Floats[i], x, 1e-12)
				}
				m.Reset()
			}
			for i, n := range in {
				x := testutil.Floats(t, n.Value().Data())
				for j, x0 := range normal(n.Name(), uint64(i), 2, 3).Floats {
					require.InDelta(t, x0-weights.Floats[j], x[j], 1e-12, n.Name())
				}
			}
		})
	}
}

// TestAddBesideInPlaceOps: residual sums whose branches are stock ops that work in place, and inputs given twice.
func TestAddBesideInPlaceOps(t *testing.T) {
	x := normal("x", 1, 2, 5)
	f := func(in []*G.Node) (*G.Node, error) {
		h := in[0]
		for range 2 { // h += h² + h², and the sum's square of itself
			y := G.Must(ops.Add(h, G.Must(G.Square(h)), G.Must(G.HadamardProd(h, h))))
			h = G.Must(ops.Add(y, y))
		}
		return G.HadamardProd(h, h)
	}
	// h -> 2h + 4h², twice, then squared.
	want, grad := make([]float64, 10), make([]float64, 10)
	weights := normal("weights", 2, 2, 5)
	for i, x := range x.Floats {
		h, d := x, 1.0
		for range 2 {
			h, d = 2*h+4*h*h, d*(2+8*h)
		}
		want[i], grad[i] = h*h, 2*h*d*weights.Floats[i]
	}
	for vm := range vms {
		res := evaluate(t, vm, tensor.Float64, f, weights.Floats, x)
		testutil.Within(t, vm+", output", res.out, want, 1e-12)
		testutil.Within(t, vm+", gradient", res.grads["x"], grad, 1e-12)
	}
}
