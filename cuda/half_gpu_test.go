package cuda_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/cudatest"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// halfTypes are the precisions that store activations in half, with the unit roundoff of their types.
var halfTypes = []struct {
	precision graph.Precision
	dtype     tensor.Dtype
	unit      float64
}{{graph.BF16, ops.BFloat16, 0x1p-8}, {graph.FP16, ops.Float16, 0x1p-11}}

// halfBound is what a result in half precision is held to.
type halfBound struct {
	want  []float64 // by the CPU in float64
	error float64   // of the naive implementation, over the largest magnitude of want
	bound float64   // twice that, and one rounding: the unit roundoff of the type that stores the result, 1e-5 for float32
}

// halfBounds returns the bounds of the results of a case, and the results of the naive implementation.
func halfBounds(t testing.TB, c opCase, precision graph.Precision, unit float64) (bounds []halfBound, results [][]float64) {
	t.Helper()
	g64, results64 := c.graph(t, tensor.Float64)
	want := oracle(t, g64, results64)
	b := newNaive()
	g, nodes := c.graph(t, tensor.Float32)
	results = run(t, machine(t, g, b, graph.WithKeep(nodes...), graph.WithPrecision(precision)), nodes)
	for i, n := range nodes {
		bounds = append(bounds, newHalfBound(want[i], results[i], b.storedAs(g, n), unit))
	}
	return bounds, results
}

// newHalfBound returns the bound of a result that lies in a type, from what the naive implementation has got.
func newHalfBound(want, got []float64, stored tensor.Dtype, unit float64) halfBound {
	if !ops.IsHalf(stored) {
		unit = 1e-5
	}
	e := testutil.RelErr(got, want)
	return halfBound{want, e, 2*e + unit}
}

// compareHalf holds the ops on a backend, and their gradients, to the bounds: twice the error of the naive implementation.
// Choices are those of float64 for the rounded operands, exactly.
func compareHalf(t *testing.T, b graph.Backend) {
	for _, p := range halfTypes {
		for _, c := range opCases() {
			t.Run(fmt.Sprint(p.precision, "/", c.name), func(t *testing.T) {
				g, nodes := c.graph(t, tensor.Float32)
				m := machine(t, g, b, graph.WithKeep(nodes...), graph.WithPrecision(p.precision))
				got := run(t, m, nodes)
				require.Zero(t, m.Counts()["host"], "%v", m.Plan())
				if c.chooses {
					g64, results64 := c.graph(t, tensor.Float64)
					roundInputs(t, g64, p.dtype)
					require.Equal(t, oracle(t, g64, results64), got)
					return
				}
				bounds, _ := halfBounds(t, c, p.precision, p.unit)
				for i, x := range bounds {
					testutil.Within(t, fmt.Sprintf("result %d (naive error %.3g)", i, x.error), got[i], x.want, x.bound)
				}
			})
		}
	}
}

// TestHalfOpsOnGPU compares every op in half precision with the CPU's in float64.
func TestHalfOpsOnGPU(t *testing.T) { compareHalf(t, cudatest.Open(t)) }

// TestHalfBounds: the naive implementation chooses as it should and is off by a few roundings only, and in bfloat16, with
// three bits less, it breaks the bounds of float16: of all results that depend on half precision but for some that are
// small by luck.
func TestHalfBounds(t *testing.T) {
	compareHalf(t, newNaive())
	broken, all := 0, 0
	for _, c := range opCases() {
		if c.chooses {
			continue
		}
		coarse, results := halfBounds(t, c, graph.BF16, 0x1p-8)
		fine, _ := halfBounds(t, c, graph.FP16, 0x1p-11)
		for i, x := range fine {
			require.Less(t, coarse[i].error, 8*0x1p-8, "%s, result %d", c.name, i)
			require.Less(t, x.error, 8*0x1p-11, "%s, result %d", c.name, i)
			if len(x.want) < 100 || x.error < 1e-4 {
				continue
			}
			if all++; testutil.RelErr(results[i], x.want) > x.bound {
				broken++
			}
		}
	}
	require.Greater(t, broken, all*9/10, "of %d", all)
}
