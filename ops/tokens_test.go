package ops_test

import (
	"math"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// TestIntTokens: tokens of type int give the loss and the gradient of those of type int32, and are checked alike.
func TestIntTokens(t *testing.T) {
	ids, targets := []int{3, 0, 4, 1, 1, 2}, []int{0, -1, 2, 4, 3, 1}
	run := func(vm string, of tensor.Dtype, ids, targets []int) (loss, grad []float64, err error) {
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
		m := testutil.Must(vms[vm](g))(t)
		defer m.Close()
		if err := m.RunAll(); err != nil {
			return nil, nil, err
		}
		return testutil.Floats(t, value.Data()), testutil.Floats(t, testutil.Must(w.Grad())(t).Data()), nil
	}
	for vm := range vms {
		loss, grad, err := run(vm, tensor.Int, ids, targets)
		require.NoError(t, err)
		wantLoss, wantGrad, err := run(vm, tensor.Int32, ids, targets)
		require.NoError(t, err)
		require.Equal(t, wantLoss, loss)
		require.Equal(t, wantGrad, grad)

		_, _, err = run(vm, tensor.Int, []int{3, 0, 4, 1, 5, 2}, targets)
		require.ErrorContains(t, err, "ops: embedding: id 5 at (1, 1) is outside the vocabulary [0, 5)")
		_, _, err = run(vm, tensor.Int, ids, []int{0, -1, -2, 4, 3, 1})
		require.ErrorContains(t, err, "ops: cross entropy: target -2 at (2) is outside the vocabulary [-1, 5)")
		if strconv.IntSize == 64 {
			huge := math.MaxInt32
			_, _, err = run(vm, tensor.Int, []int{3, 0, 4, 1, 2, huge + 1}, targets)
			require.ErrorContains(t, err, "ops: int32: 2147483648 at (1, 2) is outside the range of int32")
		}
	}
}
