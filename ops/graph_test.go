package ops_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
)

// TestAddGradientsAreSeparateNodes: the gradients of nested sums are separate values, so a solver that zeroes one after
// use does not change the others.
func TestAddGradientsAreSeparateNodes(t *testing.T) {
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
			m := testutil.Closing(machine(g))(t)
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

// TestAddBesideInPlaceOps: residual sums with branches of Gorgonia's own ops, which work in place, and with inputs
// given twice.
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
		res := runGraph(t, vm, tensor.Float64, f, weights.Floats, x)
		testutil.Within(t, vm+", output", res.out, want, 1e-12)
		testutil.Within(t, vm+", gradient", res.grads["x"], grad, 1e-12)
	}
}

// TestOpsMergeInGraphs: an op applied twice to the same inputs gives one node, and so do the further outputs of its
// gradients. Another parameter or input gives another node.
func TestOpsMergeInGraphs(t *testing.T) {
	g := G.NewGraph()
	x := normal("x", 1, 2, 8, 2, 4).Node(g, tensor.Float64)
	z := normal("z", 2, 2, 8, 2, 4).Node(g, tensor.Float64)
	w, pe := normal("w", 3, 8, 8).Node(g, tensor.Float64), normal("pe", 4, 4, 4).Node(g, tensor.Float64)
	w1, w2 := normal("w1", 5, 3, 16).Node(g, tensor.Float64), normal("w2", 6, 4, 3).Node(g, tensor.Float64)
	gain := normal("gain", 7, 4).Node(g, tensor.Float64)
	gates := normal("gates", 8, 2, 8, 2, 2).Node(g, tensor.Float64)
	distinct := []func() (*G.Node, error){
		func() (*G.Node, error) { return ops.SiLU(x) },
		func() (*G.Node, error) { return ops.SiLU(z) },
		func() (*G.Node, error) { return ops.Sigmoid(x) },
		func() (*G.Node, error) { return ops.Softmax(x) },
		func() (*G.Node, error) { return ops.Add(x, z) },
		func() (*G.Node, error) { return ops.Add(z, x) },
		func() (*G.Node, error) { return ops.Add(x, z, z) },
		func() (*G.Node, error) { return ops.Linear(x, w) },
		func() (*G.Node, error) { return ops.Linear(x, w, ops.WithHeads(1)) },
		func() (*G.Node, error) { return ops.Linear(x, w, ops.WithHeads(2)) },
		func() (*G.Node, error) { return spec.Apply(linear.Fused{}, x, w) },
		func() (*G.Node, error) { return spec.Apply(linear.Fused{Heads: [linear.MaxFused]int{2}}, x, w) },
		func() (*G.Node, error) { return ops.RoPE(x, 10000, 0) },
		func() (*G.Node, error) { return ops.RoPE(x, 10000, 1) },
		func() (*G.Node, error) { return ops.RoPE(x, 10000.000000000002, 0) },
		func() (*G.Node, error) { return ops.RMSNorm(x, gain, 1e-6) },
		func() (*G.Node, error) { return ops.RMSNorm(x, gain, 1.0000000000000002e-6) },
		func() (*G.Node, error) { return ops.CompressMean(x, ops.Params{BlockLen: 4, Stride: 2}) },
		func() (*G.Node, error) { return ops.CompressMean(x, ops.Params{BlockLen: 4, Stride: 4}) },
		func() (*G.Node, error) { return ops.CompressMean(x, ops.Params{BlockLen: 2, Stride: 2}) },
		func() (*G.Node, error) { return ops.CompressMLP(x, pe, w1, w2, ops.Params{BlockLen: 4, Stride: 2}) },
		func() (*G.Node, error) { return ops.CompressMLP(x, pe, w1, w2, ops.Params{BlockLen: 4, Stride: 4}) },
		func() (*G.Node, error) { return ops.GatedSum(gates, x, z) },
		func() (*G.Node, error) { return ops.GatedSum(gates, z, x) },
	}
	seen := map[*G.Node]int{}
	hashes := map[uint32]int{}
	for i, make := range distinct {
		a := testutil.Must(make())(t)
		b := testutil.Must(make())(t)
		require.Same(t, a, b, "op %d: %v", i, a)
		require.NotContains(t, seen, a, "op %d: %v", i, a)
		require.NotContains(t, hashes, a.Op().Hashcode(), "op %d: %v", i, a)
		seen[a], hashes[a.Op().Hashcode()] = i, i
	}
}

// TestLispMachine: the forward pass runs. Gradients, which a LispMachine takes by itself, are an error and not silently
// zero.
func TestLispMachine(t *testing.T) {
	g := G.NewGraph()
	q := normal("q", 1, 1, 6, 2, 4).Node(g, tensor.Float64)
	o := testutil.Must(ops.SlidingWindow(q, q, q, 4))(t)
	cost := G.Must(G.Add(G.Must(G.Sum(o)), G.Must(G.Sum(testutil.Must(attention.LSE(o))(t)))))
	tape := testutil.Closing(G.NewTapeMachine(g), nil)(t)
	require.NoError(t, tape.RunAll())
	want := cost.Value().Data()
	forward := testutil.Closing(G.NewLispMachine(g, G.ExecuteFwdOnly()), nil)(t)
	require.NoError(t, forward.RunAll())
	require.Equal(t, want, cost.Value().Data())
	both := testutil.Closing(G.NewLispMachine(g), nil)(t)
	require.ErrorContains(t, both.RunAll(), "a LispMachine's own gradients")
}
