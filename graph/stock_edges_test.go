package graph_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// atEdges runs a graph of one input and returns its output and, of the sum of it, the gradient.
func atEdges(t *testing.T, dt tensor.Dtype, f build, shape []int, x []float64) (y, dx []float64) {
	t.Helper()
	g := G.NewGraph()
	in := G.NewTensor(g, dt, len(shape), G.WithShape(shape...), G.WithName("x"),
		G.WithValue(operand{shape: shape}.value(dt, x)))
	out := G.Must(f(G.Nodes{in}))
	cost := out
	if !out.IsScalar() {
		cost = G.Must(G.Sum(out))
	}
	testutil.Must(graph.Grad(cost, in))(t)
	m := newMachine(t, g, graph.WithKeep(out))
	require.NoError(t, m.RunAll())
	return numbers(t, out.Value()), gradient(t, in)
}

// nearAll holds each number to the one wanted, as near does.
func nearAll(t *testing.T, what string, dt tensor.Dtype, got, want []float64, scale float64) {
	t.Helper()
	require.Len(t, got, len(want), what)
	for i, w := range want {
		if !near(dt, got[i], w, scale) {
			t.Errorf("%s: got %v at %d, want %v", what, got[i], i, w)
			return
		}
	}
}

// TestSoftmaxOfFarRows: each row's softmax and its logarithm are right, along every axis, whatever the other rows hold.
// Rows differ by up to the largest numbers; a row of NaN or infinities changes no other one.
func TestSoftmaxOfFarRows(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	rows := [][]float64{{0, 0, 0}, {100, 0, 0}, {0, 0, 88}, {88, 0, 1}, {-1e30, -1e30, -1e30}, {1e30, -1e30, 0},
		{710, 0, -710}, {5, -inf, 5}, {-3, -2, -1}, {math.MaxFloat32, -math.MaxFloat32, 1},
		{nan, 0, 0}, {0, inf, 0}, {1e-30, 0, -1e-30}, {-inf, -inf, -inf}, {-inf, 0, -inf}, {-90, -90, -90.5}}
	for _, dt := range []tensor.Dtype{tensor.Float32, tensor.Float64} {
		for _, logs := range []bool{false, true} {
			for axis := range 3 {
				shape := []int{4, 4, 4}
				shape[axis] = 3
				place := func(n []int) (row, at int) { return n[(axis+1)%3]*4 + n[(axis+2)%3], n[axis] }
				x := made(shape, func(n []int) float64 {
					row, at := place(n)
					return float64(float32(rows[row][at]))
				})
				f := map[bool]func(*G.Node, ...int) (*G.Node, error){false: G.SoftMax, true: G.LogSoftMax}[logs]
				y, _ := atEdges(t, dt, along(f, axis), shape, x.Data)
				want := made(shape, func(n []int) float64 {
					row, at := place(n)
					top, sum := math.Inf(-1), 0.0
					for _, v := range rows[row] {
						top = max(top, float64(float32(v)))
					}
					for _, v := range rows[row] {
						sum += math.Exp(float64(float32(v)) - top)
					}
					p := float64(float32(rows[row][at])) - top - math.Log(sum)
					if !logs {
						p = math.Exp(float64(float32(rows[row][at]))-top) / sum
					}
					return p
				})
				for i := range want.Data { // float32 may flush subnormal numbers
					if dt == tensor.Float32 && math.Abs(want.Data[i]) < 1.2e-38 && math.Abs(y[i]) < 1.2e-38 {
						y[i] = want.Data[i]
					}
				}
				nearAll(t, fmt.Sprint(dt, " log ", logs, " axis ", axis), dt, y, want.Data, 0)
			}
		}
	}
}

// TestMaximaAtEdges: maxima of -Inf and of NaN, over axes and in windows, and windows that lie in the padding.
func TestMaximaAtEdges(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	numbers := []float64{-inf, -inf, nan, 1, inf, -1, 0, math.MaxFloat64, -math.MaxFloat64, -inf, nan, -inf}
	largest := func(v []float64) float64 {
		top := math.Inf(-1)
		for _, x := range v {
			top = max(top, x)
		}
		return top
	}
	for _, shape := range [][]int{{12}, {3, 4}, {4, 3}, {2, 3, 2}, {1, 12}, {2, 1, 3, 2}} {
		for _, axes := range subsets(len(shape)) {
			for rotated := range numbers {
				x := slices.Concat(numbers[rotated:], numbers[:rotated])
				y, _ := atEdges(t, tensor.Float64, along(G.Max, axes...), shape, x)
				nearAll(t, fmt.Sprint("Max ", shape, axes, rotated), tensor.Float64, y, reduced(axes,
					largest)([]*ref.Tensor{ref.From(x, shape...)}).Data, 0)
			}
		}
	}
	for rotated := range numbers {
		x := slices.Concat(numbers[rotated:], numbers[:rotated])
		w := window{[]int{2, 2}, []int{2, 2}, []int{1, 2}, []int{1, 1}}
		pool := one(func(x *G.Node) (*G.Node, error) { return G.MaxPool2D(x, w.kernel, w.pad, w.stride) })
		y, dx := atEdges(t, tensor.Float64, pool, []int{1, 1, 3, 4}, x)
		nearAll(t, fmt.Sprint("MaxPool2D ", rotated), tensor.Float64, y, w.pool(largest)([]*ref.Tensor{ref.From(x, 1, 1, 3,
			4)}).Data, 0)
		require.EqualValues(t, 4*2, sum(dx), "each window in the image has one largest element")
	}
}
