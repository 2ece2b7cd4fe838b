package ops_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// TestOpsMatchOracle: outputs and gradients of every op, each Spec in memory of its own, and the same in graphs with
// gorgonia.Grad.
func TestOpsMatchOracle(t *testing.T) {
	for _, c := range layerCases() {
		names, want := c.wantGrads()
		for _, dt := range c.dtypes() {
			t.Run(fmt.Sprint(c.name, "/", dt), func(t *testing.T) {
				y, grads := c.compute(t, dt, 2)
				testutil.Within(t, "output", y.floats, c.want.Data, tolerance(dt))
				for i, d := range grads {
					testutil.Within(t, "gradient of "+names[i], d.floats, want[i].Data, tolerance(dt))
				}
				if c.large {
					return
				}
				for vm := range vms {
					weights := c.dy().floats
					if len(c.want.Shape) == 0 {
						weights = []float64{1}
					}
					res := evaluate(t, vm, dt, c.build, weights, c.inputs...)
					testutil.Within(t, vm+", output", res.out, c.want.Data, tolerance(dt))
					for i, name := range names {
						w := append([]float64{}, want[i].Data...)
						if len(c.want.Shape) == 0 { // evaluate takes the gradient of the scalar itself
							for j := range w {
								w[j] /= c.dy().floats[0]
							}
						}
						testutil.Within(t, vm+", gradient of "+name, res.grads[name], w, tolerance(dt))
					}
				}
			})
		}
	}
}

// TestOpsBitsOfTeams: the same bits from any number of workers, forward and backward.
func TestOpsBitsOfTeams(t *testing.T) {
	for _, c := range layerCases() {
		if !c.large {
			continue
		}
		y, grads := c.compute(t, tensor.Float32, 1)
		for _, workers := range []int{2, 3, 7} {
			y2, grads2 := c.compute(t, tensor.Float32, workers)
			require.Equal(t, y, y2, "%s, %d workers", c.name, workers)
			require.Equal(t, grads, grads2, "%s, %d workers", c.name, workers)
		}
	}
}

// TestOpsGradients holds the gradients to central differences of the op itself.
func TestOpsGradients(t *testing.T) {
	for _, c := range layerCases() {
		if c.large || len(c.inputs[0].floats) > 600 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			out, nodes := c.graph(t, tensor.Float64)
			spec, ok := ops.SpecOf(out.Op())
			require.True(t, ok)
			_, grads := c.compute(t, tensor.Float64, 1)
			team, dy := cpu.NewTeam(1), c.dy().floats
			for i, n := range nodes {
				if n == nil {
					continue
				}
				x := bind(t, spec, tensor.Float64, 1, c.inputs...)
				want := testutil.CentralDifference(func(at []float64) (sum float64) {
					copy(cpu.Slice[float64](x.in[i].Buf), at)
					require.NoError(t, team.Run(&x.kernel, x.mem))
					for j, y := range cpu.Slice[float64](x.out[0].Buf) {
						sum += y * dy[j]
					}
					return sum
				}, c.inputs[i].floats, 1e-5)
				testutil.Within(t, "gradient of "+c.inputs[i].name, grads[0].floats, want, 1e-6)
				grads = grads[1:]
			}
		})
	}
}

// TestOpsMergeInGraphs: an op applied twice to the same inputs is one node, and so are its gradients' further outputs; a
// changed parameter or input makes another.
func TestOpsMergeInGraphs(t *testing.T) {
	g := G.NewGraph()
	x := normal("x", 1, 2, 8, 2, 4).node(g, tensor.Float64)
	z := normal("z", 2, 2, 8, 2, 4).node(g, tensor.Float64)
	w, pe := normal("w", 3, 8, 8).node(g, tensor.Float64), normal("pe", 4, 4, 4).node(g, tensor.Float64)
	w1, w2 := normal("w1", 5, 3, 16).node(g, tensor.Float64), normal("w2", 6, 4, 3).node(g, tensor.Float64)
	gain := normal("gain", 7, 4).node(g, tensor.Float64)
	gates := normal("gates", 8, 2, 8, 2, 2).node(g, tensor.Float64)
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
		func() (*G.Node, error) { return ops.RoPE(x, 10000, 0) },
		func() (*G.Node, error) { return ops.RoPE(x, 10000, 1) },
		func() (*G.Node, error) { return ops.RoPE(x, 10000.000000000002, 0) },
		func() (*G.Node, error) { return ops.RMSNorm(x, gain, 1e-6) },
		func() (*G.Node, error) { return ops.RMSNorm(x, gain, 1.0000000000000002e-6) },
		func() (*G.Node, error) { return ops.CompressMean(x, 4, 2) },
		func() (*G.Node, error) { return ops.CompressMean(x, 4, 4) },
		func() (*G.Node, error) { return ops.CompressMean(x, 2, 2) },
		func() (*G.Node, error) { return ops.CompressMLP(x, pe, w1, w2, 4, 2) },
		func() (*G.Node, error) { return ops.CompressMLP(x, pe, w1, w2, 4, 4) },
		func() (*G.Node, error) { return ops.GatedSum(gates, x, z) },
		func() (*G.Node, error) { return ops.GatedSum(gates, z, x) },
	}
	seen := map[*G.Node]int{}
	hashes := map[uint32]int{}
	for i, make := range distinct {
		a, err := make()
		require.NoError(t, err)
		b, err := make()
		require.NoError(t, err)
		require.Same(t, a, b, "op %d: %v", i, a)
		require.NotContains(t, seen, a, "op %d: %v", i, a)
		require.NotContains(t, hashes, a.Op().Hashcode(), "op %d: %v", i, a)
		seen[a], hashes[a.Op().Hashcode()] = i, i
	}
}
