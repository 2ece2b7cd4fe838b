package graph_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// ranged is an input whose elements count up.
func ranged(g *G.ExprGraph, name string, from int, shape ...int) *G.Node {
	return G.NewTensor(g, tensor.Float64, len(shape), G.WithShape(shape...), G.WithName(name), G.WithInit(G.RangedFrom(from)))
}

// newOp is the op of Gorgonia's Example_iop. The op of its first input's gradient also writes the second input's gradient.
type newOp struct{ foreign }

func (*newOp) DiffWRT(int) []bool { return []bool{true, true, true} }

func (*newOp) SymDiff(in G.Nodes, _, _ *G.Node) (G.Nodes, error) {
	second := G.NewUniqueNode(G.WithType(in[1].Type()), G.WithShape(in[1].Shape()...), G.WithChildren(G.Nodes{in[1]}), G.In(in[0].Graph()),
		G.WithOp(G.Iop{}))
	first, err := G.ApplyOp(&foreign{"new diff op", 3, func(v ...G.Value) (G.Value, error) {
		if err := v[2].(tensor.Tensor).Memset(1000.0); err != nil {
			return nil, err
		}
		return G.CloneValue(v[1])
	}}, in[0], in[1], second)
	return G.Nodes{first, second}, err
}

// TestGradientWrittenByAnotherOp: as in a TapeMachine, an op may write the gradient that another op has made.
func TestGradientWrittenByAnotherOp(t *testing.T) {
	g := G.NewGraph()
	x, y := ranged(g, "x", 0, 2, 1, 2, 3), ranged(g, "y", 0, 2, 1, 2, 3)
	sum := &newOp{foreign{"new op", 2, func(v ...G.Value) (G.Value, error) { return tensor.Add(v[0], v[1]) }}}
	testutil.Must(G.Grad(G.Must(G.Sum(G.Must(G.ApplyOp(sum, x, y)))), x, y))(t)
	run(t, g)
	require.Equal(t, 1000.0, gradient(t, y)[0])
}

// TestGorgoniasSolvers: Gorgonia's own solvers train weights that are on the host. The results on the CPU and on a device have the
// same bits, and are those of a TapeMachine with BindDualValues.
func TestGorgoniasSolvers(t *testing.T) {
	rate := G.WithLearnRate(0.1)
	for name, solver := range map[string]func() G.Solver{
		"vanilla":  func() G.Solver { return G.NewVanillaSolver(rate, G.WithClip(5), G.WithBatchSize(2)) },
		"momentum": func() G.Solver { return G.NewMomentum(rate) },
		"adam":     func() G.Solver { return G.NewAdamSolver(rate) },
		"adagrad":  func() G.Solver { return G.NewAdaGradSolver(rate) },
		"rmsprop":  func() G.Solver { return G.NewRMSPropSolver(rate) },
	} {
		train := func(newVM func(n *network) G.VM) (got [][]float64) {
			n := newNetwork(t).grad(t)
			vm, s := newVM(n), solver()
			for range 4 {
				require.NoError(t, vm.RunAll(), name)
				require.NoError(t, s.Step(G.NodesToValueGrads(n.in)), name)
				vm.Reset()
			}
			for _, w := range n.in {
				got = append(got, numbers(t, w.Value()))
			}
			return got
		}
		tape := train(func(n *network) G.VM { return G.NewTapeMachine(n.graph, G.BindDualValues(n.in...)) })
		var want [][]float64
		for _, opts := range [][]graph.Option{nil, {graph.WithBackend(fakedevice.New())}, {graph.WithBackend(fakedevice.New()), graph.WithCapture()}} {
			got := train(func(n *network) G.VM { return newMachine(t, n.graph, opts...) })
			if want == nil {
				want = got
			}
			require.Equal(t, want, got, name)
		}
		for i := range want {
			testutil.Within(t, fmt.Sprint(name, i), want[i], tape[i], 1e-6)
		}
	}
}

// TestConcurrentTraining is Gorgonia's example concurrentTraining: machines at the same time, each on a batch that is a view of one
// tensor. The results are those of TapeMachines with BindDualValues.
func TestConcurrentTraining(t *testing.T) {
	const rows = 300
	train := func(batch int, newVM func(g *G.ExprGraph, weights ...*G.Node) G.VM) []float64 {
		xs := tensor.New(tensor.WithShape(rows, 5), tensor.WithBacking(testutil.Normal(1, rows*5)))
		ys := tensor.New(tensor.WithShape(rows), tensor.WithBacking(testutil.Normal(2, rows)))
		var wait sync.WaitGroup
		for from := 0; from < rows; from += batch {
			g := G.NewGraph()
			x, y := ranged(g, "x", 0, batch, 5), ranged(g, "y", 0, batch)
			testutil.Must(G.Grad(G.Must(G.Sum(G.Must(G.Mul(G.Must(G.Transpose(x)), y)))), x, y))(t)
			for n, of := range map[*G.Node]*tensor.Dense{x: xs, y: ys} {
				require.NoError(t, G.Let(n, testutil.Must(of.Slice(G.S(from, from+batch)))(t)))
			}
			vm, solver := newVM(g, x, y), G.NewVanillaSolver(G.WithLearnRate(0.01), G.WithBatchSize(float64(batch)))
			wait.Go(func() {
				for range 10 {
					require.NoError(t, vm.RunAll())
					require.NoError(t, solver.Step(G.NodesToValueGrads(G.Nodes{x, y})))
					vm.Reset()
				}
			})
		}
		wait.Wait()
		return append(xs.Float64s(), ys.Float64s()...)
	}
	for _, batch := range []int{rows, 100} {
		got := train(batch, func(g *G.ExprGraph, _ ...*G.Node) G.VM { return newMachine(t, g) })
		want := train(batch, func(g *G.ExprGraph, w ...*G.Node) G.VM { return G.NewTapeMachine(g, G.BindDualValues(w...)) })
		testutil.Within(t, fmt.Sprint("batches of ", batch), got, want, 1e-6)
	}
}
