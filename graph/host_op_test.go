package graph_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// TestScalarsOfTensors: a node without axes has a scalar of Gorgonia as its value, whatever its op returns, and so the next op
// takes it.
func TestScalarsOfTensors(t *testing.T) {
	rank0 := func(v ...G.Value) (G.Value, error) { return tensor.New(tensor.FromScalar(v[0].Data())), nil }
	for name, c := range map[string]struct {
		build build
		want  float64
	}{
		"Tensordot": {one(func(x *G.Node) (*G.Node, error) { return G.Tensordot([]int{0}, []int{0}, x, x) }), 20},
		"Reshape": {one(func(x *G.Node) (*G.Node, error) {
			return G.Reshape(G.Must(G.Slice(x, G.S(1, 2))), tensor.ScalarShape())
		}), 4},
		"Slice":        {one(func(x *G.Node) (*G.Node, error) { return G.Slice(x, G.S(1)) }), 4},
		"Sum":          {one(func(x *G.Node) (*G.Node, error) { return G.Sum(x) }), 6},
		"Sum of one":   {one(func(x *G.Node) (*G.Node, error) { return G.Sum(G.Must(G.Slice(x, G.S(0, 1)))) }), 2},
		"Max":          {one(func(x *G.Node) (*G.Node, error) { return G.Max(x) }), 4},
		"another op's": {one(func(x *G.Node) (*G.Node, error) { return G.ApplyOp(&foreign{"rank 0", 1, rank0}, G.Must(G.Sum(x))) }), 6},
	} {
		for _, dt := range []tensor.Dtype{tensor.Float32, tensor.Float64, tensor.Int, tensor.Int32, tensor.Int64} {
			if name == "Tensordot" && dt != tensor.Float32 && dt != tensor.Float64 { // package tensor has it for floats alone
				continue
			}
			g := G.NewGraph()
			x := G.NewVector(g, dt, G.WithShape(2), G.WithName("x"), G.WithInit(func(dt tensor.Dtype, s ...int) any {
				return map[tensor.Dtype]any{tensor.Float32: []float32{2, 4}, tensor.Float64: []float64{2, 4}, tensor.Int: []int{2, 4},
					tensor.Int32: []int32{2, 4}, tensor.Int64: []int64{2, 4}}[dt]
			}))
			y := G.Must(c.build(G.Nodes{x}))
			twice := G.Must(G.Add(y, y))
			require.NoError(t, newMachine(t, g).RunAll(), "%s of %v", name, dt)
			require.Implements(t, (*G.Scalar)(nil), y.Value(), "%s of %v", name, dt)
			require.EqualValues(t, c.want, y.Value().Data(), "%s of %v", name, dt)
			require.EqualValues(t, 2*c.want, twice.Value().Data(), "%s of %v", name, dt)
		}
	}
}
