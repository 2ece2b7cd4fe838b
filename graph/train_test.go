package graph_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec/optimizer"
)

// trainer is a machine with weights on its backend, and a solver for these weights: of the machine, or one that takes
// its steps after the runs.
type trainer struct {
	*graph.Machine
	solver   *optim.AdamW
	moved    *graph.Resident
	weights  []G.ValueGrad
	together bool
}

func newTrainer(t *testing.T, b graph.Backend, together bool, weights G.Nodes, opts ...graph.Option) *trainer {
	t.Helper()
	x := &trainer{moved: testutil.Must(graph.MoveInputs(b, weights...))(t), weights: G.NodesToValueGrads(weights),
		together: together}
	x.solver = testutil.Must(optim.NewAdamW(optim.WithLR(0.01), optim.WithBackend(b)))(t)
	if together {
		opts = append(opts, graph.WithOptimizer(x.solver, weights...))
	}
	x.Machine = testutil.Must(graph.NewMachine(weights[0].Graph(), append(opts, graph.WithBackend(b))...))(t)
	return x
}

// step runs the graph and takes a step, together or one after the other.
func (x *trainer) step(t *testing.T) {
	t.Helper()
	if x.together {
		require.NoError(t, x.Step())
		return
	}
	require.NoError(t, errors.Join(x.RunAll(), x.solver.Step(x.weights), x.ZeroGrads()))
}

func (x *trainer) close(t *testing.T) {
	t.Helper()
	require.NoError(t, errors.Join(x.solver.Close(), x.Machine.Close(), x.moved.Close()))
}

// TestStepIsRunAllAndStep: on the CPU and on a device, with gradients that ops on the host compute.
func TestStepIsRunAllAndStep(t *testing.T) {
	var want []float64
	for i := range 4 {
		x := vector(G.NewGraph(), "x", 1, 1)
		w := vector(x.Graph(), "w", 1, -2)
		cost := G.Must(G.Sum(G.Must(G.Square(G.Must(G.HadamardProd(w, x))))))
		testutil.Must(graph.Grad(cost, w))(t)
		host := w.Value()
		net := newTrainer(t, []graph.Backend{graph.NewCPU(1), fakedevice.New()}[i/2], i%2 == 1, G.Nodes{w},
			graph.WithCapture())
		loss, got := testutil.Must(net.AsyncReader(cost))(t), []float64(nil)
		for step := range 4 {
			x.Value().Data().([]float64)[0] = float64((step*step + 1) * (1 - 2*(step%2)))
			net.step(t)
			require.NoError(t, loss.Fetch())
			got = append(got, testutil.Must(loss.Next())(t))
		}
		require.NoError(t, errors.Join(loss.Fetch(), loss.Fetch()))
		require.Equal(t, 2, loss.Waiting())
		require.ErrorContains(t, loss.Fetch(), "2 copies")
		require.NoError(t, net.moved.Download())
		if got = append(got, numbers(t, host)...); want == nil {
			want = got
		}
		require.Equal(t, want, got, i)
		net.close(t)
	}
}

// TestMachineReplacesDualValues: the run of a Machine replaces gradients that a TapeMachine has added up in inputs. A
// step uses those of the run.
func TestMachineReplacesDualValues(t *testing.T) {
	var want []float64
	for i := range 3 { // without dual values, with them, and with steps in the run
		n := newTiny(t)
		if i > 0 {
			tape := G.NewTapeMachine(n.graph, G.BindDualValues(n.weights...))
			require.NoError(t, errors.Join(tape.RunAll(), tape.Close()))
		}
		x, all := newTrainer(t, graph.NewCPU(1), i == 2, n.weights), []float64(nil)
		for range 4 {
			x.step(t)
			all = append(all, testutil.Must(x.solver.Norm())(t))
		}
		for range 2 {
			require.NoError(t, x.RunAll())
			for _, w := range n.weights {
				all = append(all, gradient(t, w)...)
			}
		}
		if i == 0 {
			want = all
		}
		require.Equal(t, want, all)
		x.close(t)
	}
}

func TestStepRefuses(t *testing.T) {
	n := newTiny(t)
	m, s := newMachine(t, n.graph), testutil.Must(optim.NewAdamW())(t)
	with := func(opts ...graph.Option) error { return testutil.Err(graph.NewMachine(n.graph, opts...)) }
	count := G.NewVector(G.NewGraph(), tensor.Int32, G.WithShape(2), G.WithName("count"))
	twice := G.Must(G.Add(count, count))
	w := n.weights[0]
	for _, c := range []struct {
		err  error
		want string
	}{
		{m.Step(), "step: made without WithOptimizer"},
		{testutil.Err(m.ProfileStep()), "made without WithOptimizer"},
		{with(graph.WithOptimizer(nil, w)), "WithOptimizer: the optimizer is nil"},
		{with(graph.WithOptimizer((*optim.AdamW)(nil), w)), "WithOptimizer: the optimizer is nil"},
		{with(graph.WithOptimizer(new(optim.AdamW), w)), "make the solver by NewAdamW"},
		{with(graph.WithOptimizer(s)), "no weights"},
		{with(graph.WithOptimizer(s, nil)), "nil node is not an input of the graph"},
		{with(graph.WithOptimizer(s, n.loss)), "is not an input of the graph"},
		{with(graph.WithOptimizer(s, w, w)), "two weights are named w1"},
		{with(graph.WithOptimizer(s, n.targets)), "has no gradient in the graph"},
		{with(graph.WithOptimizer(s, w), graph.WithGradients(w, w)), "2 gradients of 1 weights"},
		{with(graph.WithOptimizer(s, w), graph.WithGradients(n.targets)), "the gradient of w1 is int32 (1, 5)"},
		{s.Step([]G.ValueGrad{(*G.Node)(nil)}), "weight 0 is nil"},
		{testutil.Err(m.AsyncReader(w)), "it is not computed"},
		{testutil.Must(newMachine(t, n.graph).AsyncReader(n.loss))(t).Fetch(), "the machine has not run"},
		{testutil.Err(newMachine(t, count.Graph()).AsyncReader(twice)), "op + (node 1, shape (2)): type int32"},
		{testutil.Err(new(graph.Machine).AsyncReader(n.loss)), "closed"},
		{new(graph.Machine).Step(), "closed"},
		{testutil.Err(s.NormReader()), "no machine yet"},
	} {
		require.ErrorContains(t, c.err, c.want)
	}
	require.Equal(t, map[string]int64{"upload": 0, "download": 0}, new(graph.Machine).Counts())
	first := newMachine(t, n.graph, graph.WithOptimizer(s, n.weights...))
	require.ErrorContains(t, with(graph.WithOptimizer(s, n.weights...)), "of another machine already")
	require.ErrorContains(t, s.Step(G.NodesToValueGrads(n.weights)), "a machine takes its steps")
	n.targets.Value().(*tensor.Dense).Int32s()[0] = 1 << 20
	before := numbers(t, w.Value())
	require.Error(t, first.Step(), "a target outside the vocabulary")
	require.Equal(t, before, numbers(t, w.Value()))
	require.Zero(t, s.Steps())
	require.NoError(t, s.Close())
	require.ErrorContains(t, first.Step(), "adamw: closed")
}

// logOptimizer logs the calls of a machine.
type logOptimizer struct {
	optim.AdamW
	calls   []string
	failing string // name of the call that fails
}

var errOptimizer = errors.New("no step today")

func (o *logOptimizer) call(name string) error {
	o.calls = append(o.calls, name)
	if name == o.failing {
		return errOptimizer
	}
	return nil
}

func (o *logOptimizer) Rule(name string, shape tensor.Shape) (muon, decay bool) { return false, false }
func (o *logOptimizer) Attach(*graph.OptimizerState) error                      { return o.call("attach") }
func (o *logOptimizer) End(err error) {
	_ = o.call(fmt.Sprint("end ",
		err == nil))
}
func (o *logOptimizer) taken() (calls []string) {
	calls, o.calls = o.calls,
		nil
	return calls
}
func (o *logOptimizer) Begin() (optimizer.Hyper, error) {
	return optimizer.Hyper{LR: 1e-3, Beta1: 0.9, Beta2: 0.9, Eps: 1e-8, Step: 1}, o.call("begin")
}

// TestOptimizerByInterfaceAlone: a Machine calls an optimizer only by the interface, and every step that it begins, it
// ends.
func TestOptimizerByInterfaceAlone(t *testing.T) {
	n := newTiny(t)
	b := fakedevice.New()
	r := testutil.Must(graph.MoveInputs(b, n.weights...))(t)
	o := &logOptimizer{}
	m := newMachine(t, n.graph, graph.WithBackend(b), graph.WithCapture(), graph.WithOptimizer(o, n.weights...))
	require.Equal(t, []string{"attach"}, o.taken())
	for range 4 {
		require.NoError(t, m.RunAll())
		require.Empty(t, o.taken())
		require.NoError(t, m.Step())
		require.Equal(t, []string{"begin", "end true"}, o.taken())
	}
	o.failing = "begin"
	require.ErrorIs(t, m.Step(), errOptimizer)
	require.Equal(t, []string{"begin"}, o.taken())
	o.failing = ""
	n.targets.Value().(*tensor.Dense).Int32s()[0] = 1 << 20
	require.Error(t, m.Step())
	require.Equal(t, []string{"begin", "end false"}, o.taken())
	o.failing = "attach"
	_, err := graph.NewMachine(n.graph, graph.WithBackend(b), graph.WithOptimizer(o, n.weights...))
	require.ErrorIs(t, err, errOptimizer)

	require.Equal(t, graph.Backend(b), m.Backend())
	require.NotNil(t, m.Stream())
	require.NoError(t, m.Close())
	require.Nil(t, m.Stream())
	require.NoError(t, r.Close())
}

// TestUpdateInThePlan: the update is the last steps of the plan, which only Step runs.
func TestUpdateInThePlan(t *testing.T) {
	n := newTiny(t)
	s := testutil.Must(optim.NewAdamW(optim.WithMuon(optim.DefaultDecayRule)))(t)
	m := newMachine(t, n.graph, graph.WithOptimizer(s, n.weights...))
	require.NoError(t, errors.Join(m.RunAll(), m.Step(), m.Step()))
	p := m.Plan()
	require.Equal(t, "gradient norm", p.Steps[len(p.Steps)-2].Op)
	require.Equal(t, "muon", p.Steps[len(p.Steps)-1].Op)
	weights := 0
	for _, w := range n.weights {
		weights += w.Shape().TotalSize() * int(w.Dtype().Size())
	}
	require.Equal(t, weights, p.Moments, "one moment of each weight")
	for i, x := range p.Steps {
		require.EqualValues(t, map[bool]int{false: 3, true: 2}[i >= len(p.Steps)-3], x.Runs, x.Op)
	}
	require.Contains(t, p.String(), "gradient norm")
	require.Len(t, testutil.Must(m.ProfileStep())(t), len(p.Steps))
	require.Equal(t, 3, s.Steps())
}

// TestValuesOnADevice: they can be read, but not assigned to.
func TestValuesOnADevice(t *testing.T) {
	w := newTiny(t).weights[0]
	want := numbers(t, w.Value())
	testutil.Closing(graph.MoveInputs(fakedevice.New(), w))(t)
	got := testutil.Must(graph.HostTensor(w))(t)
	require.Equal(t, want, numbers(t, got))
	require.ErrorContains(t, nn.Assign(w.Value(), got), "in host memory")
}

// ranged is an input whose elements count up.
func ranged(g *G.ExprGraph, name string, from int, shape ...int) *G.Node {
	return G.NewTensor(g, tensor.Float64, len(shape), G.WithShape(shape...), G.WithName(name),
		G.WithInit(G.RangedFrom(from)))
}

// newOp is the op of Gorgonia's Example_iop. The op of its first input's gradient also writes the second input's
// gradient.
type newOp struct{ foreign }

func (*newOp) DiffWRT(int) []bool { return []bool{true, true, true} }

func (*newOp) SymDiff(in G.Nodes, _, _ *G.Node) (G.Nodes, error) {
	second := G.NewUniqueNode(G.WithType(in[1].Type()), G.WithShape(in[1].Shape()...), G.WithChildren(G.Nodes{in[1]}),
		G.In(in[0].Graph()),
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

// TestGorgoniasSolvers: Gorgonia's own solvers train weights that are on the host. The results on the CPU and on a
// device have the same bits, and are those of a TapeMachine with BindDualValues.
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
			for i, w := range n.in { // weights are parts of larger tensors, as in Gorgonia's example concurrentTraining
				shape := w.Shape()
				shape[0]++
				rows := tensor.New(tensor.WithShape(shape...), tensor.WithBacking(testutil.Normal(uint64(i), shape.TotalSize())))
				require.NoError(t, G.Let(w, testutil.Must(rows.Slice(G.S(1, shape[0])))(t)))
			}
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
		for _, opts := range [][]graph.Option{nil, {graph.WithBackend(fakedevice.New())},
			{graph.WithBackend(fakedevice.New()), graph.WithCapture()}} {
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
