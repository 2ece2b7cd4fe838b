package graph_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestBatchNormStatistics: the running statistics go on over the runs of several machines, evaluation uses them, and
// its gradient is that of their scale.
func TestBatchNormStatistics(t *testing.T) {
	const momentum, eps = 0.3, 1e-3
	for _, dt := range []tensor.Dtype{tensor.Float64, tensor.Float32} {
		for _, shape := range [][]int{{4, 3}, {3, 3, 2, 2}} {
			tol := map[tensor.Dtype]float64{tensor.Float64: 1e-12, tensor.Float32: 1e-5}[dt]
			g := G.NewGraph()
			x := G.NewTensor(g, dt, len(shape), G.WithShape(shape...), G.WithName("x"))
			one := operand{shape: []int{1, 3, 1, 1}[:len(shape)]}
			scale := G.NewTensor(g, dt, len(shape), G.WithShape(one.shape...), G.WithName("scale"), G.WithValue(one.value(dt,
				[]float64{1, 2, 3})))
			bias := G.NewTensor(g, dt, len(shape), G.WithShape(one.shape...), G.WithName("bias"), G.WithValue(one.value(dt,
				[]float64{0, 1, 2})))
			y, _, _, op, err := G.BatchNorm(x, scale, bias, momentum, eps)
			require.NoError(t, err)
			testutil.Must(graph.Grad(G.Must(G.Sum(y)), x))(t)
			mean, variance := []float64{0, 0, 0}, []float64{1, 1, 1}
			area := tensor.ProdInts(shape[2:])
			channel := func(i int) int { return i / area % 3 }
			first, second, eval := newMachine(t, g), newMachine(t, g), newMachine(t, g, graph.WithEvalMode(), graph.WithKeep(y))
			for run, m := range []*graph.Machine{first, first, eval, second, first, eval} {
				v := testutil.Convert[float64](testutil.Convert[float32](testutil.Normal(uint64(run), tensor.ProdInts(shape))))
				require.NoError(t, G.Let(x, operand{shape: shape}.value(dt, v)))
				require.NoError(t, m.RunAll())
				if m == eval {
					want, slopes := make([]float64, len(v)), make([]float64, len(v))
					for i := range v {
						c := channel(i)
						slopes[i] = float64(c+1) / math.Sqrt(variance[c]+eps)
						want[i] = (v[i]-mean[c])*slopes[i] + float64(c)
					}
					testutil.Within(t, "value", numbers(t, y.Value()), want, tol)
					testutil.Within(t, "gradient", gradient(t, x), slopes, tol)
					continue
				}
				lists := make([][]float64, 3)
				for i := range v {
					lists[channel(i)] = append(lists[channel(i)], v[i])
				}
				for c, list := range lists {
					average, squares := sum(list)/float64(len(list)), 0.0
					for _, v := range list {
						squares += (v - average) * (v - average)
					}
					mean[c] = momentum*average + (1-momentum)*mean[c]
					variance[c] = momentum*squares/float64(len(list)-1) + (1-momentum)*variance[c]
				}
				gotMean, gotVariance := op.Stats()
				testutil.Within(t, "mean", numbers(t, gotMean), mean, tol)
				testutil.Within(t, "variance", numbers(t, gotVariance), variance, tol)
			}
		}
	}
}
