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

// total returns the sum of all elements.
func total(y *G.Node) *G.Node {
	if y.IsScalar() {
		return y
	}
	return G.Must(G.Sum(y))
}

// atEdges holds the output of a graph of one input to its reference, as near does. It returns the gradient of the output's sum.
func atEdges(t *testing.T, dt tensor.Dtype, name string, f build, want reference, x *ref.Tensor) []float64 {
	t.Helper()
	in := G.NodeFromAny(G.NewGraph(), operand{shape: x.Shape}.value(dt, x.Data), G.WithName("x"))
	out := G.Must(f(G.Nodes{in}))
	testutil.Must(graph.Grad(total(out), in))(t)
	run(t, in.Graph(), graph.WithKeep(out))
	got := numbers(t, out.Value())
	for i, w := range want([]*ref.Tensor{x}).Data {
		flushed := dt == tensor.Float32 && math.Abs(w) < 1.2e-38 && math.Abs(got[i]) < 1.2e-38 // float32 may flush subnormal numbers
		if !flushed && !near(dt, got[i], w, 0) {
			t.Errorf("%s of %v %v: got %v at %d, want %v", name, dt, x.Shape, got[i], i, w)
			break
		}
	}
	return gradient(t, in)
}

// TestSoftmaxOfFarRows: each row's softmax and its logarithm are right, along every axis, whatever the other rows hold. Rows differ
// by up to the largest numbers; a row of NaN or infinities changes no other one.
func TestSoftmaxOfFarRows(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	rows := [][]float64{{0, 0, 0}, {100, 0, 0}, {0, 0, 88}, {88, 0, 1}, {-1e30, -1e30, -1e30}, {1e30, -1e30, 0},
		{710, 0, -710}, {5, -inf, 5}, {-3, -2, -1}, {math.MaxFloat32, -math.MaxFloat32, 1}, {nan, 0, 0}, {0, inf, 0},
		{1e-30, 0, -1e-30}, {-inf, -inf, -inf}, {-inf, 0, -inf}, {-90, -90, -90.5}}
	for axis := range 3 {
		shape := []int{4, 4, 4}
		shape[axis] = 3
		x := made(shape, func(n []int) float64 { return float64(float32(rows[n[(axis+1)%3]*4+n[(axis+2)%3]][n[axis]])) })
		for _, dt := range []tensor.Dtype{tensor.Float32, tensor.Float64} {
			atEdges(t, dt, "SoftMax", along(G.SoftMax, axis), rowwise(axis, softmax(false)), x)
			atEdges(t, dt, "LogSoftMax", along(G.LogSoftMax, axis), rowwise(axis, softmax(true)), x)
		}
	}
}

// TestMaximaAtEdges: maxima of -Inf and of NaN, over axes and in windows, and windows that lie in the padding.
func TestMaximaAtEdges(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	numbers := []float64{-inf, -inf, nan, 1, inf, -1, 0, math.MaxFloat64, -math.MaxFloat64, -inf, nan, -inf}
	largest := func(v []float64) float64 { return slices.Max(append([]float64{-inf}, v...)) }
	w := window{[]int{2, 2}, []int{2, 2}, []int{1, 2}, []int{1, 1}}
	pool := one(func(x *G.Node) (*G.Node, error) { return G.MaxPool2D(x, w.kernel, w.pad, w.stride) })
	for at := range numbers {
		x := slices.Concat(numbers[at:], numbers[:at])
		for _, shape := range [][]int{{12}, {3, 4}, {4, 3}, {2, 3, 2}, {1, 12}, {2, 1, 3, 2}} {
			for _, axes := range subsets(len(shape)) {
				atEdges(t, tensor.Float64, fmt.Sprint("Max ", axes, at), along(G.Max, axes...), reduced(axes, largest), ref.From(x, shape...))
			}
		}
		dx := atEdges(t, tensor.Float64, fmt.Sprint("MaxPool2D ", at), pool, w.pool(largest), ref.From(x, 1, 1, 3, 4))
		require.EqualValues(t, 4*2, sum(dx), "each window in the image has one largest element")
	}
}
