package ops_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

var dtypes = []tensor.Dtype{tensor.Float64, tensor.Float32}

// tolerance is the relative error allowed against float64.
func tolerance(dt tensor.Dtype) float64 {
	if dt == tensor.Float32 {
		return 1e-5
	}
	return 1e-10
}

// ofCost returns the cases of a cost, including the cases with documents.
func ofCost(cost opcases.Cost) (list []opcases.Case) {
	for _, c := range append(opcases.All(cost), opcases.DocumentCases()...) {
		if c.Cost == cost {
			list = append(list, c)
		}
	}
	return list
}

// withOneOracle returns the case with an oracle that is computed once, for the case's inputs and its plan's dy.
func withOneOracle(c opcases.Case) opcases.Case {
	outputs, gradients := c.Outputs, c.Gradients
	var out, grads []*ref.Tensor
	c.Outputs = func(in []*ref.Tensor) []*ref.Tensor {
		if out == nil {
			out = outputs(in)
		}
		return out
	}
	if gradients != nil {
		c.Gradients = func(in []*ref.Tensor, dy *ref.Tensor) []*ref.Tensor {
			if grads == nil {
				grads = gradients(in, dy)
			}
			return grads
		}
	}
	return c
}

// requireOracle compares the outputs of a case, and its gradients for dy, with the oracle's.
func requireOracle(t *testing.T, c opcases.Case, dt tensor.Dtype, out, grads []array, dy array) {
	t.Helper()
	if c.Selection != nil {
		q, kc := c.Inputs[0].Tensor(), c.Inputs[1].Tensor()
		others := testutil.Must(c.CheckSelection(q, kc, out[0].Ints, tolerance(dt)))(t)
		require.False(t, dt == tensor.Float64 && others > 0, "%d rows have other blocks", others)
		return
	}
	for i, want := range c.Outputs(opcases.Tensors(c.Inputs)) {
		if want != nil {
			require.Equal(t, append([]int{}, want.Shape...), append([]int{}, out[i].Shape...))
			testutil.Within(t, fmt.Sprint("output ", i), out[i].Floats, want.Data, tolerance(dt))
		}
	}
	if c.Gradients == nil {
		return
	}
	for i, want := range c.Gradients(opcases.Tensors(c.Inputs), dy.Tensor()) {
		if want != nil {
			testutil.Within(t, "gradient of "+c.Inputs[i].Name, grads[i].Floats, want.Data, tolerance(dt))
		}
	}
}

// TestOpsMatchOracle: outputs and gradients of every op, each Spec in memory of its own.
func TestOpsMatchOracle(t *testing.T) {
	for _, c := range ofCost(opcases.Small) {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			c := withOneOracle(c)
			for _, dt := range dtypes {
				t.Run(dt.String(), func(t *testing.T) {
					out, grads, dy := runCase(t, c, dt, 2)
					requireOracle(t, c, dt, out, grads, dy)
				})
			}
		})
	}
}

// TestOpsInGraphs: outputs and gradients of every op in graphs, with gorgonia.Grad.
func TestOpsInGraphs(t *testing.T) {
	for _, c := range ofCost(opcases.Small) {
		if c.Gradients == nil || len(c.Inputs[0].Floats) > 7000 {
			continue
		}
		weights := testutil.Must(c.Plan())(t).Inputs[len(c.Inputs)]
		if len(weights.Shape) == 0 {
			weights.Floats = []float64{1} // runGraph takes the gradient of the scalar itself
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			want := c.Outputs(opcases.Tensors(c.Inputs))[:1]
			inGraph := withOneOracle(c)
			inGraph.Outputs = func([]*ref.Tensor) []*ref.Tensor { return want }
			for vm := range vms {
				for _, dt := range dtypes {
					t.Run(fmt.Sprint(vm, "/", dt), func(t *testing.T) {
						res := runGraph(t, vm, dt, c.Build, weights.Floats, c.Inputs...)
						out, grads := []array{{Shape: want[0].Shape, Floats: res.out}}, []array{}
						for _, a := range c.Inputs {
							grads = append(grads, array{Floats: res.grads[a.Name]})
						}
						requireOracle(t, inGraph, dt, out, grads, weights)
					})
				}
			}
		})
	}
}

// TestOpsSameBitsForAnyWorkers: large cases match the oracle, and any number of workers gives the same bits.
func TestOpsSameBitsForAnyWorkers(t *testing.T) {
	for _, c := range ofCost(opcases.Large) {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			out, grads, dy := runCase(t, c, tensor.Float32, 1)
			requireOracle(t, c, tensor.Float32, out, grads, dy)
			for _, workers := range []int{2, 3, 7} {
				out2, grads2, _ := runCase(t, c, tensor.Float32, workers)
				require.Equal(t, out, out2, "%d workers", workers)
				require.Equal(t, grads, grads2, "%d workers", workers)
			}
		})
	}
}

// TestOpsGradients holds the gradients to central differences of the op itself.
func TestOpsGradients(t *testing.T) {
	for _, c := range ofCost(opcases.Small) {
		elements := 0
		for _, a := range c.Inputs {
			elements += len(a.Floats)
		}
		if c.Gradients == nil || elements > 1500 || c.Documents != nil { // the first call of a case with documents makes a table
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			_, grads, dy := runCase(t, c, tensor.Float64, 1)
			plan := testutil.Must(c.Plan())(t)
			team := cpu.NewTeam(1)
			for i, a := range c.Inputs {
				if plan.Grads[i] < 0 {
					continue
				}
				x := bindSpec(t, plan.Calls[0].Spec, tensor.Float64, 1, c.Inputs...)
				want := testutil.CentralDifference(func(at []float64) (sum float64) {
					copy(cpu.Slice[float64](x.in[i].Buf), at)
					require.NoError(t, team.Run(&x.kernel, x.mem))
					for j, y := range cpu.Slice[float64](x.out[0].Buf) {
						sum += y * dy.Floats[j]
					}
					return sum
				}, a.Floats, 1e-5)
				testutil.Within(t, "gradient of "+a.Name, grads[i].Floats, want, 1e-6)
			}
		})
	}
}
