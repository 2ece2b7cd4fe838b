package graph_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// ranged is an input whose elements count up.
func ranged(g *G.ExprGraph, name string, from int, shape ...int) *G.Node {
	return G.NewTensor(g, tensor.Float64, len(shape), G.WithShape(shape...), G.WithName(name), G.WithInit(G.RangedFrom(from)))
}

// examples are the graphs of Gorgonia v0.9.18's runnable examples, by name, with the nodes that they print.
// TestGorgoniaTraining has the examples that train.
var examples = map[string]func(g *G.ExprGraph) G.Nodes{
	"autodiff, basic, symbolicDiff": func(g *G.ExprGraph) G.Nodes {
		in := scalars(g, 2, 2.5)
		z := G.Must(G.Add(in[0], in[1]))
		return append(must(G.Grad(z, in...)), z)
	},
	"BroadcastAdd": func(g *G.ExprGraph) G.Nodes {
		a, b := ranged(g, "a", 100, 2), ranged(g, "b", 1, 2, 2)
		return G.Nodes{G.Must(G.BroadcastAdd(a, b, []byte{1}, nil)), G.Must(G.BroadcastAdd(b, a, nil, []byte{1}))}
	},
	"BroadcastGte_creatingTriangleMatrices": func(g *G.ExprGraph) G.Nodes {
		a, b := ranged(g, "a", 0, 3, 1), ranged(g, "b", 0, 1, 4)
		return G.Nodes{G.Must(G.BroadcastGte(a, b, true, []byte{1}, []byte{0})), G.Must(G.BroadcastLt(a, b, true, []byte{1}, []byte{0}))}
	},
	"Broadcast_nils": func(g *G.ExprGraph) G.Nodes {
		a, b, err := G.Broadcast(ranged(g, "a", 0, 2, 3), ranged(g, "b", 1, 2, 3), G.NewBroadcastPattern(nil, nil))
		if err != nil {
			panic(err)
		}
		return G.Nodes{G.Must(G.Add(a, b))}
	},
	"errorHandling": func(g *G.ExprGraph) G.Nodes {
		mul, add, square, softmax := G.Lift2(G.Mul), G.Lift2Broadcast(G.BroadcastAdd), G.Lift1(G.Square), G.Lift1Axial(G.SoftMax)
		return G.Nodes{softmax(square(add(mul(ranged(g, "a", 0, 2, 3), ranged(g, "b", 0, 3, 2)), ranged(g, "c", 0, 2, 1), nil, []byte{1}))).Node()}
	},
	"monad_raison_detre": func(g *G.ExprGraph) G.Nodes {
		mul, tanh, add := G.Lift2(G.Mul), G.Lift1(G.Tanh), G.Lift2Broadcast(G.BroadcastAdd)
		x, w, b := ranged(g, "x", -10, 3, 7), ranged(g, "w", -10, 7, 4), ranged(g, "b", 0, 1, 4)
		if wrong := add(mul(x, w), b, nil, []byte{1}); wrong.Err() == nil { // monad_raison_detre_errors
			panic("a bias along the wrong axis is no error")
		}
		return G.Nodes{tanh(add(mul(x, w), b, nil, []byte{0})).Node()}
	},
	"iop": func(g *G.ExprGraph) G.Nodes {
		x, y := ranged(g, "x", 0, 2, 1, 2, 3), ranged(g, "y", 0, 2, 1, 2, 3)
		sum := &newOp{foreign{"new op", 2, func(v ...G.Value) (G.Value, error) { return tensor.Add(v[0], v[1]) }}}
		must(G.Grad(G.Must(G.Sum(G.Must(G.ApplyOp(sum, x, y)))), x, y))
		return G.Nodes{y.Deriv()}
	},
	"BatchedMatMul": func(g *G.ExprGraph) G.Nodes {
		d, e := ranged(g, "d", 1, 10, 1, 1), ranged(g, "e", 11, 10, 1, 10)
		return G.Nodes{
			G.Must(G.BatchedMatMul(ranged(g, "a", 1, 2, 2, 3), ranged(g, "b", 13, 2, 3, 2))), G.Must(G.BatchedMatMul(d, e)), G.Must(G.BatchedMatMul(e, d, true, true)),
			G.Must(G.BatchedMatMul(ranged(g, "i", 1, 1, 3, 2, 4), ranged(g, "j", 10, 1, 3, 4, 2))), G.Must(G.BatchedMatMul(ranged(g, "x", 1, 3, 2, 2, 3), ranged(g, "y", 37, 3, 2, 3, 2))),
		}
	},
	"BatchedMatMul_withBackprop": func(g *G.ExprGraph) G.Nodes {
		a, b := ranged(g, "a", 1, 2, 4, 3, 9), ranged(g, "b", 13, 2, 4, 3, 9)
		c := G.Must(G.BatchedMatMul(a, b, false, true))
		return append(must(G.Grad(G.Must(G.Sum(c)), a, b)), c)
	},
	"SoftMax": func(g *G.ExprGraph) G.Nodes {
		return G.Nodes{G.Must(G.SoftMax(ranged(g, "a", 1, 2, 3))), G.Must(G.SoftMax(ranged(g, "b", 2, 2, 3), 0)), G.Must(G.SoftMax(ranged(g, "c", 3, 2, 2, 3)))}
	},
	"Concat": func(g *G.ExprGraph) G.Nodes {
		return G.Nodes{G.Must(G.Concat(2, ranged(g, "x", 0, 2, 3, 4, 5), ranged(g, "y", 120, 2, 3, 4, 5)))}
	},
	"Unconcat": func(g *G.ExprGraph) G.Nodes {
		return must(G.Unconcat(G.Must(G.Concat(2, ranged(g, "x", 0, 2, 3, 4, 5), ranged(g, "y", 120, 2, 3, 4, 5))), 2, 2))
	},
	"Tensordot_vectors": func(g *G.ExprGraph) G.Nodes {
		return G.Nodes{G.Must(G.Tensordot([]int{0}, []int{0}, ranged(g, "a", 2, 2), ranged(g, "b", 21, 2)))}
	},
	"DiagFlat": func(g *G.ExprGraph) G.Nodes {
		return G.Nodes{G.Must(G.DiagFlat(ranged(g, "a", 1, 2, 2))), G.Must(G.DiagFlat(ranged(g, "b", 1, 2, 3, 2))), G.Must(G.DiagFlat(ranged(g, "c", 1, 2)))}
	},
	"keepDims": func(g *G.ExprGraph) (list G.Nodes) {
		a := ranged(g, "a", 1, 2, 3)
		for _, axes := range [][]int{{0}, {1}, {}} {
			mean := func(a *G.Node) (*G.Node, error) { return G.Mean(a, axes...) }
			list = append(list, G.Must(mean(a)), G.Must(G.KeepDims(a, len(axes) == 0 || axes[0] == 0, mean)))
		}
		return list
	},
}

// TestGorgoniaExamples compares the values that Gorgonia's examples print with those of TapeMachine. TapeMachine is right
// only for values that a Read reads.
func TestGorgoniaExamples(t *testing.T) {
	for name, build := range examples {
		g, h := G.NewGraph(), G.NewGraph()
		nodes, same := build(g), build(h)
		require.NoError(t, newMachine(t, g, graph.WithKeep(nodes...)).RunAll(), name)
		want := make([]G.Value, len(same))
		for i, n := range same {
			G.Read(n, &want[i])
		}
		tape := G.NewTapeMachine(h)
		require.NoError(t, tape.RunAll(), name)
		require.NoError(t, tape.Close())
		for i, n := range nodes {
			require.Equal(t, numbers(t, want[i]), numbers(t, n.Value()), "%s, %d", name, i)
			if name == "iop" {
				require.Equal(t, 1000.0, numbers(t, n.Value())[0])
			}
		}
	}
}

// newOp is the op of Example_iop. The op of its first input's gradient also writes the second input's gradient.
type newOp struct{ foreign }

func (*newOp) DiffWRT(int) []bool { return []bool{true, true, true} }

func (*newOp) SymDiff(in G.Nodes, _, _ *G.Node) (G.Nodes, error) {
	second := G.NewUniqueNode(G.WithType(in[1].Type()), G.WithShape(in[1].Shape()...), G.WithChildren(G.Nodes{in[1]}), G.In(in[0].Graph()), G.WithOp(G.Iop{}))
	first, err := G.ApplyOp(&foreign{"new diff op", 3, func(v ...G.Value) (G.Value, error) {
		if err := v[2].(tensor.Tensor).Memset(1000.0); err != nil {
			return nil, err
		}
		return G.CloneValue(v[1])
	}}, in[0], in[1], second)
	return G.Nodes{first, second}, err
}

// TestGorgoniaTraining trains the examples linearRegression, nonConcurrentTraining and concurrentTraining, and compares with
// a TapeMachine that has BindDualValues. The batches of concurrentTraining are views of one tensor.
func TestGorgoniaTraining(t *testing.T) {
	type machine = func(t *testing.T, g *G.ExprGraph, weights ...*G.Node) G.VM
	ours := func(t *testing.T, g *G.ExprGraph, _ ...*G.Node) G.VM { return newMachine(t, g) }
	tape := func(_ *testing.T, g *G.ExprGraph, weights ...*G.Node) G.VM {
		return G.NewTapeMachine(g, G.BindDualValues(weights...))
	}
	train := func(t *testing.T, vm G.VM, solver G.Solver, weights ...*G.Node) {
		require.NoError(t, vm.RunAll())
		require.NoError(t, solver.Step(G.NodesToValueGrads(weights)))
		vm.Reset()
	}
	regression := func(dt tensor.Dtype) func(t *testing.T, on machine) [][]float64 {
		return func(t *testing.T, on machine) [][]float64 {
			g := G.NewGraph()
			value := func(seed uint64, shape ...int) G.NodeConsOpt {
				o := normal("", shape...)
				return G.WithValue(o.value(dt, o.values(seed)))
			}
			x, y := G.NewVector(g, dt, G.WithShape(100), G.WithName("x"), value(1, 100)), G.NewVector(g, dt, G.WithShape(100), G.WithName("y"), value(2, 100))
			m, c := G.NewScalar(g, dt, G.WithName("m"), value(3)), G.NewScalar(g, dt, G.WithName("c"), value(4))
			cost := G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(G.Must(G.Add(G.Must(G.Mul(x, m)), c)), y))))))
			testutil.Must(G.Grad(cost, m, c))(t)
			vm, solver := on(t, g, m, c), G.NewVanillaSolver(G.WithLearnRate(0.01), G.WithClip(5))
			for range 100 {
				train(t, vm, solver, m, c)
			}
			return [][]float64{numbers(t, m.Value()), numbers(t, c.Value())}
		}
	}
	batches := func(rows, batch int) func(t *testing.T, on machine) [][]float64 {
		return func(t *testing.T, on machine) [][]float64 {
			xs := tensor.New(tensor.WithShape(rows, 5), tensor.WithBacking(testutil.Normal(1, rows*5)))
			ys := tensor.New(tensor.WithShape(rows), tensor.WithBacking(testutil.Normal(2, rows)))
			var wait sync.WaitGroup
			for from := 0; from < rows; from += batch {
				g := G.NewGraph()
				x, y := G.NewMatrix(g, tensor.Float64, G.WithShape(batch, 5), G.WithName("x")), G.NewVector(g, tensor.Float64, G.WithShape(batch), G.WithName("y"))
				testutil.Must(G.Grad(G.Must(G.Sum(G.Must(G.Mul(G.Must(G.Transpose(x)), y)))), x, y))(t)
				vm, solver := on(t, g, x, y), G.NewVanillaSolver(G.WithLearnRate(0.01), G.WithBatchSize(float64(batch)))
				for n, of := range map[*G.Node]*tensor.Dense{x: xs, y: ys} {
					require.NoError(t, G.Let(n, testutil.Must(of.Slice(G.S(from, from+batch)))(t)))
				}
				wait.Go(func() {
					for range 10 {
						train(t, vm, solver, x, y)
					}
				})
			}
			wait.Wait()
			return [][]float64{xs.Float64s(), ys.Float64s()}
		}
	}
	for name, run := range map[string]func(t *testing.T, on machine) [][]float64{
		"linearRegression float32": regression(tensor.Float32), "linearRegression float64": regression(tensor.Float64),
		"nonConcurrentTraining": batches(300, 300), "concurrentTraining": batches(300, 100),
	} {
		got, want := run(t, ours), run(t, tape)
		for i := range want {
			testutil.Within(t, fmt.Sprint(name, i), got[i], want[i], 1e-6)
		}
	}
}
