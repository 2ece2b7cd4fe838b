package graph_test

import (
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
)

// TestGradOfInnerNode differentiates by a node that is no input.
func TestGradOfInnerNode(t *testing.T) {
	g := G.NewGraph()
	x := G.NewScalar(g, tensor.Float32, G.WithName("x"), G.WithValue(float32(3)))
	y := G.Must(G.Square(x))
	z := G.Must(G.Square(y))
	d := testutil.Must(graph.Grad(z, y, z, x))(t)
	run(t, g, graph.WithKeep(d...))
	for i, want := range []float64{18, 1, 108} {
		require.Equal(t, []float64{want}, numbers(t, d[i].Value()))
	}
}

func TestGradErrors(t *testing.T) {
	g := G.NewGraph()
	scale := G.NewScalar(g, tensor.Float64, G.WithName("scale"))
	single := G.NewScalar(g, tensor.Float32, G.WithName("single"))
	x := G.NewVector(g, tensor.Float64, G.WithShape(2), G.WithName("x"))
	y := G.NewVector(g, tensor.Float64, G.WithShape(2), G.WithName("y"))
	count := G.NewScalar(g, tensor.Int, G.WithName("count"))
	cost := G.Must(G.Sum(x))
	opaque := G.Must(spec.Apply(refuses{}, x))
	behind := G.Must(G.Sum(opaque))
	alien := testutil.Must(G.ApplyOp(&foreign{name: "alien", arity: 1}, x))(t)
	elsewhere := G.NewScalar(G.NewGraph(), tensor.Float64, G.WithName("elsewhere"))
	read := G.Read(cost, new(G.Value))
	softmax := testutil.Must(graph.Grad(G.Must(G.Sum(G.Must(G.Square(G.Must(G.SoftMax(y)))))), y))(t)[0]
	loose, absent := G.NewConstant(1.0), G.NewConstant(2.0, G.In(g)) // Gorgonia adds constants when an op reads them
	grad := func(cost *G.Node, wrt ...*G.Node) error { return testutil.Err(graph.Grad(cost, wrt...)) }
	scaled := func(cost, scale *G.Node) error { return testutil.Err(graph.ScaledGrad(cost, scale, x)) }
	for _, c := range []struct {
		err  error
		want string
	}{
		{grad(nil, x), "no cost"},
		{grad(cost), "no inputs to differentiate with respect to"},
		{grad(loose, x), "the cost, op const 1 (node -1, shape ()), belongs"},
		{grad(absent, x), "is not among the nodes of its graph"},
		{grad(read, x), "has no type: statements have none"},
		{grad(x, x), `input "x" (node 2, shape (2)), is not a scalar`},
		{grad(count, x), "want float32 or float64"},
		{grad(cost, x, y), `does not depend on input "y"`},
		{grad(cost, nil), "nil node"},
		{grad(cost, elsewhere), "elsewhere"},
		{grad(behind, x), "gradient of op refuses (node 6, shape (2)): ops: refuses: has no gradient"},
		{grad(G.Must(G.Sum(alien)), x), "op alien (node 8, shape (2)) has no gradient"},
		{grad(behind, y), `does not depend on input "y"`},
		{grad(G.Must(G.Add(cost, G.Must(G.At(x, 1)))), x), "has no gradient"},
		{grad(G.Must(G.Sum(softmax)), y), "op SoftmaxDiff{-1, false}() (node "},
		{grad(G.Must(G.Sum(softmax)), y), "has no gradient: panic: softmax operator only supports one input, got 3 instead"},

		{scaled(nil, scale), "graph: grad: no cost"},
		{scaled(cost, nil), "graph: grad: no scale"},
		{scaled(loose, loose), "the cost, op const 1 (node -1, shape ()), belongs"},
		{scaled(cost, loose), "the scale, op const 1 (node -1, shape ()), belongs"},
		{scaled(read, scale), "the cost, op print (node 9, shape ()), has no type"},
		{scaled(cost, read), "the scale, op print (node 9, shape ()), has no type"},
		{scaled(cost, x), `the scale, input "x" (node 2, shape (2)), is not a scalar`},
		{scaled(cost, single), `the scale, input "single" (node 1, shape ()), differs`},
		{scaled(cost, elsewhere), "differs in type or graph"},
	} {
		require.ErrorContains(t, c.err, c.want)
	}
	require.Nil(t, x.Deriv(), "no gradient is set by a call that fails")
}

// TestGradMakesNoUnwantedGradients: the gradient of a linear layer by its input is not computed if nobody asks for it.
func TestGradMakesNoUnwantedGradients(t *testing.T) {
	w := ranged(G.NewGraph(), "w", 0, 5, 4)
	testutil.Must(graph.Grad(G.Must(G.Sum(G.Must(ops.Linear(ranged(w.Graph(), "x", 0, 3, 4), w)))), w))(t)
	for _, n := range w.Graph().AllNodes() {
		s, _ := spec.SpecOf(n.Op())
		_, unwanted := s.(linear.InputGrad)
		require.False(t, unwanted)
	}
}

// TestCostIsKept: a cost has a value after a run even if its gradient reads it.
func TestCostIsKept(t *testing.T) {
	for name, f := range map[string]func(*G.Node) (*G.Node, error){"exp": G.Exp, "sqrt": G.Sqrt, "cube": G.Cube} {
		for _, grad := range gradients {
			x := vector(G.NewGraph(), "x", 1, 3)
			cost := G.Must(f(G.Must(G.Mean(x))))
			testutil.Must(grad(cost, x))(t)
			for range 2 {
				run(t, x.Graph())
				want := map[string]float64{"exp": math.Exp(2), "sqrt": math.Sqrt2, "cube": 8}[name]
				require.InDelta(t, want, numbers(t, cost.Value())[0], 1e-12, name)
			}
		}
	}
}

// TestGradientsShareNoMemory trains with Gorgonia's solvers, which zero a gradient after their step: in each of two
// steps every weight moves by its own gradient.
func TestGradientsShareNoMemory(t *testing.T) {
	scalar, matrix := normal(), normal(2, 2)
	for _, c := range []stock{
		on("aliases by reshape", two(func(x, a *G.Node) (*G.Node, error) {
			return G.Add(x, G.Must(G.Reshape(a, tensor.Shape{2, 2})))
		}), matrix, normal(1, 4)),
		on("one node", two(func(x, y *G.Node) (*G.Node, error) { return G.Sum(G.Must(G.Add(x, y))) }), matrix, matrix),
		on("constant one", two(func(w, x *G.Node) (*G.Node, error) { return G.Add(G.Must(G.Sum(x)), w) }), scalar, matrix),
		on("of the cost itself", one(func(w *G.Node) (*G.Node, error) { return w, nil }), scalar),
		on("another input", two(G.HadamardProd), scalar, scalar),
	} {
		for gname, grad := range gradients {
			b, what, at := c.graph(t), c.name+" by "+gname, c.inputs(1)
			require.NoError(t, testutil.Err(grad(b.cost, b.in...)), what)
			b.let(t, at)
			for range 2 {
				want := c.differences(t, at)
				run(t, b.graph)
				require.NoError(t, G.NewVanillaSolver(G.WithLearnRate(1)).Step(G.NodesToValueGrads(b.in)), what)
				for i := range at {
					for j := range at[i] {
						at[i][j] -= want[i][j]
					}
					testutil.Within(t, what+", "+b.in[i].Name(), numbers(t, b.in[i].Value()), at[i], 1e-8)
				}
			}
		}
	}
	x := scalars(G.NewGraph(), 1)[0]
	testutil.Must(G.Grad(G.Must(G.Square(x)), x))(t) // starts from a constant of Gorgonia's package
	run(t, x.Graph())
	require.Equal(t, []float64{2}, gradient(t, x))
}

// TestGradNeverPanics: Gorgonia's gradients of broadcasts with axes of length one have wrong shapes, and adding them
// panics. Grad gives the right gradient or an error.
func TestGradNeverPanics(t *testing.T) {
	ops := []func(a, b *G.Node, left, right []byte) (*G.Node, error){G.BroadcastHadamardDiv, G.BroadcastHadamardProd}
	patterns, right := [][]byte{nil, {0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}, {0, 1, 2}}, 0
	for code := range 4 * 64 {
		f, h, l, r := ops[code&1], ops[code>>1&1], patterns[code>>2&7], patterns[code>>5]
		c := on("", two(func(x, y *G.Node) (*G.Node, error) {
			a := G.Must(f(x, y, l, r))
			return G.Add(a, G.Must(h(a, x, l, r)))
		}), positive(1, 1, 1), positive(1, 1, 1))
		b := c.graph(t)
		if testutil.Err(graph.Grad(b.cost, b.in...)) != nil {
			continue
		}
		values := c.inputs(1)
		b.let(t, values)
		run(t, b.graph)
		for k, want := range c.differences(t, values) {
			within(t, fmt.Sprint(code), gradient(t, b.in[k]), want)
		}
		right++
	}
	require.Equal(t, 4*64, right)
}

// TestGradOfGrad differentiates graphs of stock ops that hold gradients: by another input, by the same inputs, and
// these gradients themselves. By central differences of the gradients the result is right, or Grad returns an error.
// Many gradients of Gorgonia's ops cannot tell which inputs have a gradient.
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
			differences := sync.OnceValue(func() [][]float64 { return first.differences(t, values) })
			for i, n := range b.in {
				d, err := graph.Grad(b.cost, n)
				if err != nil {
					require.Regexp(t, `op (\w*(?i)diff|Upsample)\b.* has no gradient`, err)
					t.Log(err)
					continue
				}
				run(t, b.graph, append(first.options(), graph.WithKeep(d...))...)
				within(t, c.in[i].name, numbers(t, d[0].Value()), differences()[i])
			}
			again := c.graph(t)
			for range 2 {
				testutil.Must(graph.Grad(again.cost, again.in...))(t)
			}
		})
	}
}

// TestGradOfDropout: an element of the gradient has the factor that Dropout has drawn for the element of its input, one
// in evaluation. Where the input is zero the factor is unknown, and the gradient has its mean, which is one.
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

// vms are the machines that must agree on what n.Grad is.
var vms = map[string]func(t *testing.T, g *G.ExprGraph, keep G.Nodes) G.VM{
	"machine": func(t *testing.T, g *G.ExprGraph, keep G.Nodes) G.VM {
		return newMachine(t, g, graph.WithKeep(keep...))
	},
	"tape":        func(t *testing.T, g *G.ExprGraph, keep G.Nodes) G.VM { return G.NewTapeMachine(g) },
	"tape, bound": func(t *testing.T, g *G.ExprGraph, _ G.Nodes) G.VM { return G.NewTapeMachine(g, G.BindDualValues()) },
	"tape after a machine, bound": func(t *testing.T, g *G.ExprGraph, keep G.Nodes) G.VM {
		newMachine(t, g) // it may have added copies of gradients
		return G.NewTapeMachine(g, G.BindDualValues())
	},
}

// TestGradTwice: of several costs the first one that is differentiated by an input gives n.Grad, on any machine, by
// Grad and by gorgonia.Grad. What each call of Grad returns is the gradient of its own cost.
func TestGradTwice(t *testing.T) {
	type call struct {
		cost func(x, y, h *G.Node) *G.Node // h is tanh(x ⊙ y)
		by   string
	}
	square := func(x, _, _ *G.Node) *G.Node { return G.Must(G.Sum(G.Must(G.Square(x)))) }
	linear := func(x, _, _ *G.Node) *G.Node { return G.Must(G.Sum(x)) }
	both := func(x, y, _ *G.Node) *G.Node { return G.Must(G.Sum(G.Must(G.Cube(G.Must(G.Add(x, y)))))) }
	inner := func(_, _, h *G.Node) *G.Node { return G.Must(G.Sum(G.Must(G.Square(h)))) }
	paths := func(x, _, h *G.Node) *G.Node {
		return G.Must(G.Sum(G.Must(G.Add(G.Must(G.Cube(h)), G.Must(G.HadamardProd(x, h))))))
	}
	for name, calls := range map[string][]call{
		"same cost":                   {{inner, "xy"}, {inner, "xy"}},
		"an input twice":              {{square, "xx"}},
		"common input":                {{square, "x"}, {linear, "x"}, {both, "x"}},
		"partial overlap":             {{square, "x"}, {both, "xy"}},
		"inner node in common":        {{inner, "x"}, {paths, "xy"}},
		"inner node in common, later": {{paths, "y"}, {inner, "xy"}, {square, "x"}},
		"shared gradient":             {{both, "xy"}, {square, "x"}},
	} {
		build := func() (g *G.ExprGraph, in map[rune]*G.Node, costs G.Nodes) {
			g = G.NewGraph()
			x, y := vector(g, "x", 1, -0.5, 0.25), vector(g, "y", 0.5, 2, 1)
			h := G.Must(G.Tanh(G.Must(G.HadamardProd(x, y))))
			made := map[string]*G.Node{}
			for _, c := range calls {
				key := fmt.Sprintf("%p", c.cost)
				if made[key] == nil {
					made[key] = c.cost(x, y, h)
				}
				costs = append(costs, made[key])
			}
			return g, map[rune]*G.Node{'x': x, 'y': y}, costs
		}
		alone := func(i int, by rune) []float64 { // the gradient where no other is taken
			g, in, costs := build()
			d := testutil.Must(graph.Grad(costs[i], in[by]))(t)
			run(t, g)
			return numbers(t, d[0].Value())
		}
		for vm, start := range vms {
			for gname, grad := range gradients {
				what := fmt.Sprintf("%s on %s by %s", name, vm, gname)
				g, in, costs := build()
				first := map[rune]int{} // by input: the call that decides
				var nodes G.Nodes
				var want [][]float64 // the values of nodes
				for i, c := range calls {
					var wrt G.Nodes
					for _, by := range c.by {
						wrt, want = append(wrt, in[by]), append(want, alone(i, by))
						// gorgonia.Grad may lose, or refuse, what comes through nodes that an earlier call has passed.
						if _, ok := first[by]; !ok && (gname == "Grad" || i == 0) {
							first[by] = i
						}
					}
					list, err := grad(costs[i], wrt...)
					require.True(t, err == nil || gname != "Grad" && i > 0, "%s: %v", what, err)
					nodes = append(nodes, list...)
				}
				m := start(t, g, nodes)
				require.NoError(t, m.RunAll(), what)
				for by, i := range first {
					require.InDeltaSlice(t, alone(i, by), gradient(t, in[by]), 1e-12, "%s: %c", what, by)
				}
				if gname == "Grad" && vm == "machine" {
					for i, d := range nodes {
						require.InDeltaSlice(t, want[i], numbers(t, d.Value()), 1e-12, "%s: result %d", what, i)
					}
				}
				require.NoError(t, m.Close())
			}
		}
	}
}
