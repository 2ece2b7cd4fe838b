package graph_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestHostOpsReadAnyLayout: Gorgonia's ops get transposed, column-major and equivalent values as what they are, in each run.
func TestHostOpsReadAnyLayout(t *testing.T) {
	of := func(shape []int, x ...float64) *tensor.Dense {
		return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(x))
	}
	turned := func(d *tensor.Dense) *tensor.Dense {
		require.NoError(t, d.T())
		return d
	}
	column := func(x *G.Node) *G.Node {
		whole := G.Must(G.Reshape(x, tensor.Shape{1, 3, 1}))
		return G.Must(G.Add(G.Must(G.Mean(whole)), G.Must(G.Sum(G.Must(G.Square(G.Must(G.HadamardProd(G.Must(G.Sigmoid(x)), x))))))))
	}
	second := func(x *G.Node) *G.Node { return G.Must(G.Slice(x, G.S(1))) }
	softmax := func(x *G.Node) *G.Node { return G.Must(G.SoftMax(x, 0)) }
	ints := func(x ...int64) *tensor.Dense { return tensor.New(tensor.WithShape(3, 2), tensor.WithBacking(x)) }
	for name, c := range map[string]struct {
		plain, value *tensor.Dense
		build        func(*G.Node) *G.Node
	}{
		"transposed row":          {of([]int{3, 1}, 1, 2, 3), turned(of([]int{1, 3}, 1, 2, 3)), column},
		"column-major column":     {of([]int{3, 1}, 1, 2, 3), tensor.New(tensor.WithShape(3, 1), tensor.AsFortran([]float64{1, 2, 3})), column},
		"transposed matrix":       {of([]int{2, 3}, 0, 2, 4, 1, 3, 5), turned(of([]int{3, 2}, 0, 1, 2, 3, 4, 5)), second},
		"transposed int64":        {tensor.New(tensor.WithShape(2, 3), tensor.WithBacking([]int64{0, 2, 4, 1, 3, 5})), turned(ints(0, 1, 2, 3, 4, 5)), second},
		"vector in place of rows": {of([]int{1, 3}, 1, 2, 3), of([]int{3}, 1, 2, 3), softmax},
	} {
		for _, constant := range []bool{false, true} {
			if constant && !slices.Equal(c.plain.Shape(), c.value.Shape()) {
				continue
			}
			t.Run(fmt.Sprint(name, "/", constant), func(t *testing.T) {
				results := func(value *tensor.Dense) (list []string) {
					g := G.NewGraph()
					x := G.NewTensor(g, value.Dtype(), len(c.plain.Shape()), G.WithShape(c.plain.Shape()...), G.WithName("x"))
					if constant {
						x = g.AddNode(G.NewConstant(value, G.WithName("x")))
					}
					y := c.build(x)
					var got G.Value
					G.Read(y, &got)
					m := testutil.Closing(graph.NewMachine(g))(t)
					for range 3 {
						if !constant {
							require.NoError(t, G.Let(x, value))
						}
						require.NoError(t, m.RunAll())
						list = append(list, fmt.Sprint(got.Shape(), got.Data()))
					}
					return list
				}
				want := results(c.plain)
				require.Equal(t, []string{want[0], want[0], want[0]}, results(c.value))
			})
		}
	}
}

// TestReductionsReadAnyLayout: sums and maxima along any axes of four read transposed, column-major and cut values as what they are.
func TestReductionsReadAnyLayout(t *testing.T) {
	shape := tensor.Shape{2, 3, 4, 5}
	for _, dt := range []tensor.Dtype{tensor.Float64, tensor.Float32, tensor.Int32, tensor.Int64} {
		plain := tensor.New(tensor.WithShape(shape...), tensor.WithBacking(tensor.Range(dt, 0, shape.TotalSize())))
		turned := plain.Clone().(*tensor.Dense)
		require.NoError(t, turned.T(3, 0, 2, 1))
		require.NoError(t, turned.Transpose())
		require.NoError(t, turned.T(1, 3, 2, 0)) // the shape and the elements of plain
		wide := tensor.New(tensor.Of(dt), tensor.WithShape(3, 3, 4, 5))
		require.NoError(t, tensor.Copy(testutil.Must(wide.Slice(G.S(1, 3)))(t), plain))
		columns := tensor.New(tensor.Of(dt), tensor.WithShape(shape...), tensor.AsFortran(nil))
		for i := range shape.TotalSize() {
			at := testutil.Must(tensor.Itol(i, shape, shape.CalcStrides()))(t)
			require.NoError(t, columns.SetAt(testutil.Must(plain.At(at...))(t), at...))
		}
		for name, v := range map[string]*tensor.Dense{
			"transposed": turned, "cut": testutil.Must(wide.Slice(G.S(1, 3)))(t).(*tensor.Dense), "column-major": columns,
		} {
			for _, along := range [][]int{{0}, {1}, {2}, {3}, {0, 2}, {1, 2}, {1, 3}, {0, 1, 2, 3}} {
				for reduction, f := range map[string]func(*G.Node, ...int) (*G.Node, error){"sum": G.Sum, "max": G.Max} {
					result := func(v *tensor.Dense) string {
						g := G.NewGraph()
						y := G.Must(f(G.NewTensor(g, dt, 4, G.WithShape(shape...), G.WithName("x"), G.WithValue(v)), along...))
						require.NoError(t, testutil.Closing(graph.NewMachine(g))(t).RunAll())
						return fmt.Sprint(y.Value().Shape(), y.Value().Data())
					}
					require.Equal(t, result(plain), result(v), "%s of %s %v along %v", reduction, name, dt, along)
				}
			}
		}
	}
}
