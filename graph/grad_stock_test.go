package graph_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestGradAfterGrad: a graph that holds a gradient can be differentiated again, by an input of its own and by the same ones.
// Many gradients of Gorgonia's ops cannot tell which inputs have a gradient.
func TestGradAfterGrad(t *testing.T) {
	for _, c := range gorgonias() {
		b := c.graph(t)
		if c.wrong != "" && !c.corrected {
			continue
		}
		testutil.Must(graph.Grad(b.cost, b.in...))(t)
		other := G.NewVector(b.graph, tensor.Float64, G.WithShape(2), G.WithName("other"))
		testutil.Must(graph.Grad(G.Must(G.Sum(G.Must(G.Square(other)))), other))(t)
		_, err := graph.Grad(b.cost, b.in...)
		require.NoError(t, err, c.name)
	}
}

// TestGradOfGrad differentiates the gradients of stock ops once more: by central differences of these gradients the result is
// right, or Grad returns an error.
func TestGradOfGrad(t *testing.T) {
	for _, c := range gorgonias() {
		if c.wrong != "" && !c.corrected {
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
				d, err := graph.Grad(b.cost, n)
				if err != nil {
					require.Regexp(t, `op (\w*(?i)diff|Upsample)\b.* has no gradient`, err)
					t.Log(err)
					continue
				}
				run(t, b.graph, append(first.options(), graph.WithKeep(d...))...)
				within(t, c.in[i].name, numbers(t, d[0].Value()), first.differences(t, values)[i])
			}
		})
	}
}

// TestGradOfDropout: an element of the gradient has the factor that Dropout has drawn for the element of its input, one in
// evaluation. Where the input is zero the factor is unknown, and the gradient has its mean, which is one.
func TestGradOfDropout(t *testing.T) {
	for _, p := range []float64{0, 0.2, 0.5, 0.9} {
		for mode, opts := range map[string][]graph.Option{"training": nil, "evaluation": {graph.WithEvalMode()}} {
			for _, dt := range []tensor.Dtype{tensor.Float32, tensor.Float64} {
				what := fmt.Sprint(p, " in ", mode, " of ", dt)
				in, weights := normal("x", 40), normal("w", 40)
				x, w := in.values(1), weights.values(2)
				x[3], x[30] = 0, math.Copysign(0, -1)
				g := G.NewGraph()
				a := G.NewVector(g, dt, G.WithShape(40), G.WithName("x"), G.WithValue(in.value(dt, x)))
				b := G.NewVector(g, dt, G.WithShape(40), G.WithName("w"), G.WithValue(weights.value(dt, w)))
				y := G.Must(G.Dropout(a, p))
				testutil.Must(graph.Grad(G.Must(G.Sum(G.Must(G.HadamardProd(y, b)))), a))(t)
				m := newMachine(t, g, append(opts, graph.WithKeep(y))...)
				masks := map[string]bool{}
				for range 3 {
					require.NoError(t, m.RunAll(), what)
					out, dropped := numbers(t, y.Value()), 0
					want := make([]float64, len(out))
					for i := range want {
						switch {
						case x[i] == 0:
							want[i] = w[i]
						case out[i] == 0:
							dropped++
						case mode == "training":
							want[i] = w[i] / (1 - p)
						default:
							want[i] = w[i]
						}
					}
					testutil.Within(t, what, gradient(t, a), want, 1e-6)
					require.Equal(t, mode == "training" && p > 0, dropped > 0, what)
					masks[fmt.Sprint(out)] = true
				}
				require.Equal(t, mode == "training" && p > 0, len(masks) > 1, what)
			}
		}
	}
}
