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

// TestGradOfGrad differentiates graphs of stock ops that hold gradients: by another input, by the same inputs, and these gradients
// themselves. By central differences of the gradients the result is right, or Grad returns an error. Many gradients of Gorgonia's
// ops cannot tell which inputs have a gradient.
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
				var terms G.Nodes
				for i, d := range grads {
					if w := fmt.Sprint("weights of gradient ", i); !d.IsScalar() {
						d = total(G.Must(G.HadamardProd(d, weighted(d, w, 50+uint64(i)))))
					}
					terms = append(terms, d)
				}
				return G.ReduceAdd(terms)
			}, c.in...)
			first.eval = c.eval
			b := first.graph(t)
			other := vector(b.graph, "other", 1, 2)
			testutil.Must(graph.Grad(G.Must(G.Sum(G.Must(G.Square(other)))), other))(t)
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
			again := c.graph(t)
			for range 2 {
				testutil.Must(graph.Grad(again.cost, again.in...))(t)
			}
		})
	}
}

// TestGradOfDropout: an element of the gradient has the factor that Dropout has drawn for the element of its input, one in
// evaluation. Where the input is zero the factor is unknown, and the gradient has its mean, which is one.
func TestGradOfDropout(t *testing.T) {
	x, w := testutil.Normal(1, 40), testutil.Normal(2, 40)
	x[3], x[30] = 0, math.Copysign(0, -1)
	for _, p := range []float64{0, 0.2, 0.5, 0.9} {
		for mode, opts := range map[string][]graph.Option{"training": nil, "evaluation": {graph.WithEvalMode()}} {
			for _, dt := range []tensor.Dtype{tensor.Float32, tensor.Float64} {
				what := fmt.Sprint(p, " in ", mode, " of ", dt)
				vector, drops := operand{shape: []int{40}}, mode == "training" && p > 0
				a := G.NodeFromAny(G.NewGraph(), vector.value(dt, x), G.WithName("x"))
				b := G.NodeFromAny(a.Graph(), vector.value(dt, w), G.WithName("w"))
				y := G.Must(G.Dropout(a, p))
				testutil.Must(graph.Grad(G.Must(G.Sum(G.Must(G.HadamardProd(y, b)))), a))(t)
				m := newMachine(t, a.Graph(), append(opts, graph.WithKeep(y))...)
				masks := map[string]bool{}
				for range 3 {
					require.NoError(t, m.RunAll(), what)
					out, dropped := numbers(t, y.Value()), 0
					want := make([]float64, len(out))
					for i := range want {
						switch want[i] = w[i]; {
						case x[i] != 0 && out[i] == 0:
							want[i] = 0
							dropped++
						case x[i] != 0 && mode == "training":
							want[i] /= 1 - p
						}
					}
					testutil.Within(t, what, gradient(t, a), want, 1e-6)
					require.Equal(t, drops, dropped > 0, what)
					masks[fmt.Sprint(out)] = true
				}
				require.Equal(t, drops, len(masks) > 1, what)
			}
		}
	}
}
