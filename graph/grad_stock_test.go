package graph_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestGradAfterGrad: a graph that holds a gradient can be differentiated again, by an input of its own and by the same ones.
// Many gradients of Gorgonia's ops cannot tell which inputs have a gradient.
func TestGradAfterGrad(t *testing.T) {
	for _, c := range gorgonias() {
		b := c.graph(t)
		if c.wrong == noGradient {
			continue
		}
		if _, err := graph.Grad(b.cost, b.in...); err != nil {
			require.NotEmpty(t, c.wrong, "%s: %v", c.name, err)
			continue
		}
		other := G.NewVector(b.graph, G.Float64, G.WithShape(2), G.WithName("other"))
		testutil.Must(graph.Grad(G.Must(G.Sum(G.Must(G.Square(other)))), other))(t)
		_, err := graph.Grad(b.cost, b.in...)
		require.NoError(t, err, c.name)
	}
}

// TestGradOfGrad differentiates the gradients of stock ops once more: by central differences of these gradients the result is
// right, or Grad returns an error.
func TestGradOfGrad(t *testing.T) {
	for _, c := range gorgonias() {
		if c.wrong != "" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			first := on(c.name, func(in []*G.Node) (*G.Node, error) {
				out, err := c.build(in)
				if err != nil {
					return nil, err
				}
				grads, err := graph.Grad(G.Must(G.Sum(G.Must(G.Tanh(out)))), in...)
				if err != nil {
					return nil, err
				}
				var cost *G.Node
				for i, d := range grads {
					w := operand{name: "weights of gradient " + fmt.Sprint(i), shape: d.Shape()}
					n := G.NewTensor(d.Graph(), d.Dtype(), d.Dims(), G.WithShape(d.Shape()...), G.WithName(w.name), G.WithValue(w.value(d.Dtype(), w.values(50+uint64(i)))))
					term := G.Must(G.Sum(G.Must(G.HadamardProd(d, n))))
					if cost == nil {
						cost = term
					} else {
						cost = G.Must(G.Add(cost, term))
					}
				}
				return cost, nil
			}, c.in...)
			first.eval = c.eval
			b := first.graph(t)
			values := first.inputs(1)
			b.let(t, values)
			for i, n := range b.in {
				_, err := graph.Grad(b.cost, n)
				if err != nil {
					require.Regexp(t, `op (\w*(?i)diff|Upsample)\b.* has no gradient`, err)
					t.Log(err)
					continue
				}
				m := newMachine(t, b.graph, first.options()...)
				require.NoError(t, m.RunAll())
				within(t, c.in[i].name, gradient(t, n), first.differences(t, values)[i])
			}
		})
	}
}
