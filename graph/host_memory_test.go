package graph_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
)

// TestOpsThatReturnAnOperand: what reads the result of an op writes neither to the operand that the op has returned, nor to an
// input of the graph. The memory of the operand is used again after the last reader of both.
func TestOpsThatReturnAnOperand(t *testing.T) {
	dropout := func(p float64) build { return one(func(x *G.Node) (*G.Node, error) { return G.Dropout(x, p) }) }
	view := func(v ...G.Value) (G.Value, error) { return v[0].(*tensor.Dense).ShallowClone(), nil }
	for name, op := range map[string]build{
		"concat":                one(func(x *G.Node) (*G.Node, error) { return G.Concat(0, x) }),
		"dropout in evaluation": dropout(0.5),
		"dropout of nothing":    dropout(0),
		"reshape":               one(func(x *G.Node) (*G.Node, error) { return G.Reshape(x, tensor.Shape{3}) }),
		"slice":                 one(func(x *G.Node) (*G.Node, error) { return G.Slice(x, G.S(0, 3)) }),
		"view":                  one(func(x *G.Node) (*G.Node, error) { return G.ApplyOp(&foreign{"view", 1, view}, x) }),
		"first": one(func(x *G.Node) (*G.Node, error) {
			return G.ApplyOp(&foreign{"first", 1, func(v ...G.Value) (G.Value, error) { return v[0], nil }}, x)
		}),
		"second": one(func(x *G.Node) (*G.Node, error) {
			return G.ApplyOp(&foreign{"second", 2, func(v ...G.Value) (G.Value, error) { return v[1], nil }}, G.Must(G.Neg(x)), x)
		}),
	} {
		for operand, f := range map[string]func(float64) float64{"of an input": nil, "of a result": math.Tanh} {
			for reader, c := range map[string]struct {
				build func(x, h, d *G.Node) *G.Node // d is the op on h
				want  func(x, h, sum float64) float64
			}{
				"overwrites": {
					func(_, h, d *G.Node) *G.Node { return G.Must(G.HadamardProd(G.Must(G.Exp(d)), h)) },
					func(_, h, _ float64) float64 { return math.Exp(h) * h },
				},
				"releases": {
					func(x, h, d *G.Node) *G.Node {
						sum := G.Must(G.Sum(d))
						return G.Must(G.HadamardProd(G.Must(G.Add(G.Must(G.Cube(x)), sum)), h))
					},
					func(x, h, sum float64) float64 { return (x*x*x + sum) * h },
				},
				"is the last of both": {
					func(x, h, d *G.Node) *G.Node {
						return G.Must(G.HadamardProd(G.Must(G.Exp(d)), G.Must(G.Exp(G.Must(G.Neg(x))))))
					},
					func(x, h, _ float64) float64 { return math.Exp(h) * math.Exp(-x) },
				},
			} {
				what := name + " " + operand + " whose reader " + reader
				values, want, sum := []float64{1, 2, 3}, make([]float64, 3), 0.0
				g := G.NewGraph()
				x := vector(g, "x", values...)
				h, of := x, func(x float64) float64 { return x }
				if f != nil {
					h, of = G.Must(G.Tanh(x)), f
				}
				out := c.build(x, h, G.Must(op(G.Nodes{h})))
				for _, x := range values {
					sum += of(x)
				}
				for i, x := range values {
					want[i] = c.want(x, of(x), sum)
				}
				m := newMachine(t, g, graph.WithEvalMode())
				for range 3 {
					require.NoError(t, m.RunAll(), what)
					require.InDeltaSlice(t, want, numbers(t, out.Value()), 1e-12, what)
					require.Equal(t, values, numbers(t, x.Value()), what)
				}
			}
		}
	}
}
