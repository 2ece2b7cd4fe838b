package ops_test

import (
	"fmt"
	"math"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
	"github.com/gorgonia-nsa/nsa/ops/spec/vocab"
)

// TestSoftmaxExtremes: logits beyond the range of exp, and rows with no or few logits above -Inf.
func TestSoftmaxExtremes(t *testing.T) {
	inf := math.Inf(1)
	for _, dt := range dtypes {
		for _, c := range []struct{ x, y, dx []float64 }{ // dy = 1, 2, 3
			{[]float64{1000, 1000, 1000}, []float64{1. / 3, 1. / 3, 1. / 3}, []float64{-1. / 3, 0, 1. / 3}},
			{[]float64{-1000, -1000, -2000}, []float64{0.5, 0.5, 0}, []float64{-0.25, 0.25, 0}},
			{[]float64{-inf, 3, -inf}, []float64{0, 1, 0}, []float64{0, 0, 0}},
			{[]float64{-inf, -inf, -inf}, []float64{0, 0, 0}, []float64{0, 0, 0}},
		} {
			x := array{Name: "x", Shape: []int{1, 3}, Floats: c.x}
			y := runSpec(t, norm.Softmax{}, dt, x)[0]
			testutil.Within(t, fmt.Sprint("softmax of ", c.x), y.Floats, c.y, tolerance(dt))
			dx := runSpec(t, norm.SoftmaxGrad{}, dt, y, array{Name: "dy", Shape: []int{1, 3}, Floats: []float64{1, 2, 3}})[0]
			testutil.Within(t, fmt.Sprint("gradient at ", c.x), dx.Floats, c.dx, tolerance(dt))
		}
	}
}

// TestCrossEntropyExtremes: large logits do not overflow. The loss of a target whose probability is 0 is the whole
// distance to the largest logit. Ignored rows count neither in the sum nor in the number of targets.
func TestCrossEntropyExtremes(t *testing.T) {
	logits := func(far float64) array {
		return array{Name: "logits", Shape: []int{1, 4, 3}, Floats: []float64{
			far, far, -far, // target 0: ln 2
			0, 0, 0, // ignored
			-far, 0, -far, // target 2: the whole distance
			1, 1, 1, // target 1: ln 3
		}}
	}
	targets := array{Name: "targets", Shape: []int{1, 4}, Ints: []int32{0, -1, 2, 1}}
	for _, c := range []struct {
		dt  tensor.Dtype
		far float64
		// where exp overflows
	}{{tensor.Float32, 100}, {tensor.Float64, 1000}, {tensor.Float32, 1e9}, {tensor.Float64, 1e18}} {
		dt, far := c.dt, c.far
		x := logits(far)
		out := runSpec(t, vocab.CrossEntropy{}, dt, x, targets)
		testutil.Within(t, "loss", out[0].Floats, []float64{(math.Ln2 + far + math.Log(3)) / 3}, tolerance(dt))
		testutil.Within(t, "lse", out[1].Floats, []float64{far + math.Ln2, math.Log(3), 0, 1 + math.Log(3)}, tolerance(dt))
		testutil.Within(t, "losses", out[2].Floats, []float64{math.Ln2, 0, far, math.Log(3)}, tolerance(dt))
		d := runSpec(t, vocab.CrossEntropyGrad{}, dt, x, targets, out[1], array{Name: "dloss", Floats: []float64{9}})[0]
		testutil.Within(t, "gradient", d.Floats, []float64{-1.5, 1.5, 0, 0, 0, 0, 0, 3, -3, 1, -2, 1}, tolerance(dt))
	}

	// An offset of all logits changes neither the loss nor the gradient.
	targets = array{Name: "targets", Shape: []int{1, 1}, Ints: []int32{0}}
	for _, dt := range dtypes {
		for _, offset := range []float64{100, -1e7, 1e15, -3e38} {
			x := array{Name: "logits", Shape: []int{1, 1, 3}, Floats: []float64{offset, offset, offset}}
			out := runSpec(t, vocab.CrossEntropy{}, dt, x, targets)
			testutil.Within(t, "loss", out[0].Floats, []float64{math.Log(3)}, tolerance(dt))
			d := runSpec(t, vocab.CrossEntropyGrad{}, dt, x, targets, out[1], array{Name: "dloss", Floats: []float64{3}})[0]
			testutil.Within(t, "gradient", d.Floats, []float64{-2, 1, 1}, tolerance(dt))
		}
	}
	targets = array{Name: "targets", Shape: []int{1, 4}}

	// All ignored: no loss and no gradient.
	targets.Ints = []int32{-1, -1, -1, -1}
	for _, dt := range dtypes {
		out := runSpec(t, vocab.CrossEntropy{}, dt, logits(1), targets)
		require.Equal(t, []float64{0}, out[0].Floats)
		d := runSpec(t, vocab.CrossEntropyGrad{}, dt, logits(1), targets, out[1],
			array{Name: "dloss", Floats: []float64{9}})[0]
		require.Equal(t, make([]float64, 12), d.Floats)
	}
}

// TestIntTokens: tokens of type int give the same loss, gradient and errors as tokens of type int32.
func TestIntTokens(t *testing.T) {
	ids, targets := []int{3, 0, 4, 1, 1, 2}, []int{0, -1, 2, 4, 3, 1}
	run := func(vm string, of tensor.Dtype, ids, targets []int) (lossAndGrad [2][]float64, err error) {
		g := G.NewGraph()
		node := func(name string, x []int, shape ...int) *G.Node {
			var backing any = x
			if of == tensor.Int32 {
				narrow := make([]int32, len(x))
				for i, v := range x {
					narrow[i] = int32(v)
				}
				backing = narrow
			}
			v := tensor.New(tensor.WithShape(shape...), tensor.WithBacking(backing))
			return G.NewTensor(g, of, len(shape), G.WithShape(shape...), G.WithName(name), G.WithValue(v))
		}
		w := normal("w", 1, 5, 5).Node(g, tensor.Float64)
		x := testutil.Must(ops.Embedding(w, node("ids", ids, 2, 3)))(t)
		rows := testutil.Must(G.Reshape(x, tensor.Shape{6, 5}))(t)
		cost := testutil.Must(ops.CrossEntropy(rows, node("targets", targets, 6)))(t)
		var value G.Value
		G.Read(cost, &value)
		require.NoError(t, testutil.Err(G.Grad(cost, w)))
		m := testutil.Closing(vms[vm](g))(t)
		if err := m.RunAll(); err != nil {
			return lossAndGrad, err
		}
		grad := testutil.Must(w.Grad())(t)
		return [2][]float64{testutil.Floats(t, value.Data()), testutil.Floats(t, grad.Data())}, nil
	}
	for vm := range vms {
		want := testutil.Must(run(vm, tensor.Int32, ids, targets))(t)
		require.Equal(t, want, testutil.Must(run(vm, tensor.Int, ids, targets))(t))

		refuses := func(ids, targets []int, message string) {
			require.ErrorContains(t, testutil.Err(run(vm, tensor.Int, ids, targets)), message)
		}
		refuses([]int{3, 0, 4, 1, 5, 2}, targets, "id 5 at (1, 1)")
		refuses(ids, []int{0, -1, -2, 4, 3, 1}, "target -2 at (2)")
		if huge := math.MaxInt32; strconv.IntSize == 64 {
			refuses([]int{3, 0, 4, 1, 2, huge + 1}, targets, "int32: 2147483648 at (1, 2)")
		}
	}
}
