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
	"github.com/gorgonia-nsa/nsa/ops"
)

// trainer is a machine with weights on its backend, and a solver for these weights.
type trainer struct {
	*graph.Machine
	solver  *optim.AdamW
	moved   *graph.Resident
	weights []G.ValueGrad
}

func newTrainer(t *testing.T, b graph.Backend, weights G.Nodes, opts ...graph.Option) *trainer {
	t.Helper()
	x := &trainer{moved: testutil.Must(graph.MoveInputs(b, weights...))(t), weights: G.NodesToValueGrads(weights)}
	x.Machine = testutil.Must(graph.NewMachine(weights[0].Graph(), append(opts, graph.WithBackend(b))...))(t)
	x.solver = testutil.Must(optim.NewAdamW(optim.WithMachine(x.Machine), optim.WithLR(0.01)))(t)
	return x
}

// step runs the graph and takes a step, together or one after the other.
func (x *trainer) step(t *testing.T, together bool) {
	t.Helper()
	if together {
		require.NoError(t, x.RunAndStep(x.solver, x.weights))
		return
	}
	require.NoError(t, x.RunAll())
	require.NoError(t, x.solver.Step(x.weights))
}

func (x *trainer) close(t *testing.T) {
	t.Helper()
	require.NoError(t, errors.Join(x.solver.Close(), x.Machine.Close(), x.moved.Close()))
}

// TestRunAndStepIsRunAllAndStep: on the CPU and on a device, with gradients that ops on the host compute.
func TestRunAndStepIsRunAllAndStep(t *testing.T) {
	var want []float64
	for i := range 4 {
		x := vector(G.NewGraph(), "x", 1, 1)
		w := vector(x.Graph(), "w", 1, -2)
		cost := G.Must(G.Sum(G.Must(G.Square(G.Must(G.HadamardProd(w, x))))))
		testutil.Must(graph.Grad(cost, w))(t)
		host := w.Value()
		net := newTrainer(t, []graph.Backend{graph.NewCPU(1), fakedevice.New()}[i/2], G.Nodes{w}, graph.WithCapture())
		loss, got := testutil.Must(net.AsyncReader(cost))(t), []float64(nil)
		for step := range 4 {
			x.Value().Data().([]float64)[0] = float64((step*step + 1) * (1 - 2*(step%2)))
			net.step(t, i%2 == 1)
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

// TestMachineReplacesDualValues: the run of a Machine replaces gradients that a TapeMachine has added up in inputs. A step uses those
// of the run.
func TestMachineReplacesDualValues(t *testing.T) {
	var want []float64
	for i := range 3 { // without dual values, with them, and with steps in the run
		n := newTiny(t)
		if i > 0 {
			tape := G.NewTapeMachine(n.graph, G.BindDualValues(n.weights...))
			require.NoError(t, errors.Join(tape.RunAll(), tape.Close()))
		}
		x, all := newTrainer(t, graph.NewCPU(1), n.weights), []float64(nil)
		for range 4 {
			x.step(t, i == 2)
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

func TestRunAndStepRefuses(t *testing.T) {
	n := newTiny(t)
	m := newMachine(t, n.graph)
	s := testutil.Must(optim.NewAdamW(optim.WithMachine(m)))(t)
	count := G.NewVector(G.NewGraph(), tensor.Int32, G.WithShape(2), G.WithName("count"))
	twice := G.Must(G.Add(count, count))
	for _, c := range []struct {
		err  error
		want string
	}{
		{m.RunAndStep(nil, nil), "not of this machine"},
		{m.RunAndStep(testutil.Must(optim.NewAdamW())(t), nil), "not of this machine"},
		{m.RunAndStep((*logSolver)(nil), nil), "not of this machine"},
		{m.RunAndStep(&logSolver{}, nil), "not of this machine"},
		{m.RunAndStep(s, []G.ValueGrad{nil}), "weight 0 is nil"},
		{s.Step([]G.ValueGrad{(*G.Node)(nil)}), "weight 0 is nil"},
		{testutil.Err(m.AsyncReader(n.weights[0])), "it is not computed"},
		{testutil.Must(newMachine(t, n.graph).AsyncReader(n.loss))(t).Fetch(), "the machine has not run"},
		{testutil.Err(newMachine(t, count.Graph()).AsyncReader(twice)), "op + (node 1, shape (2)): type int32"},
		{testutil.Err(new(graph.Machine).AsyncReader(n.loss)), "closed"},
		{testutil.Err(s.NormReader()), "no step has been taken"},
	} {
		require.ErrorContains(t, c.err, c.want)
	}
	require.Equal(t, map[string]int64{"upload": 0, "download": 0}, new(graph.Machine).Counts())
	require.NoError(t, s.Close())
}

// logSolver is a solver that changes nothing and logs the calls of the machine.
type logSolver struct {
	machine *graph.Machine
	calls   []string
	failing string // name of the call that fails
}

var errSolver = errors.New("no step today")

func (s *logSolver) call(name string) error {
	s.calls = append(s.calls, name)
	if name == s.failing {
		return errSolver
	}
	return nil
}

func (s *logSolver) Machine() *graph.Machine     { return s.machine }
func (s *logSolver) Step([]G.ValueGrad) error    { return s.call("step") }
func (s *logSolver) Begin([]G.ValueGrad) error   { return s.call("begin") }
func (s *logSolver) Launch() error               { return s.call("launch") }
func (s *logSolver) End(w []G.ValueGrad) error   { return s.call("end") }
func (s *logSolver) taken() (calls []string)     { calls, s.calls = s.calls, nil; return calls }
func (s *logSolver) fail(name string) *logSolver { s.failing = name; return s }

// TestSolverByInterfaceAlone: a Machine calls a solver only by the interface Solver, and records its Launch once.
func TestSolverByInterfaceAlone(t *testing.T) {
	n := newTiny(t)
	b := fakedevice.New()
	r := testutil.Must(graph.MoveInputs(b, n.weights...))(t)
	m := newMachine(t, n.graph, graph.WithBackend(b), graph.WithCapture())
	weights := G.NodesToValueGrads(n.weights)
	s := &logSolver{machine: m}
	for _, want := range [][]string{{"step"}, {"begin", "launch", "end"}, {"begin", "end"}, {"begin", "end"}} {
		require.NoError(t, m.RunAndStep(s, weights))
		require.Equal(t, want, s.taken())
	}
	other := &logSolver{machine: m}
	require.NoError(t, m.RunAndStep(other, weights))
	require.Equal(t, []string{"begin", "launch", "end"}, other.taken(), "the recording is of the first solver")
	for _, name := range []string{"begin", "launch", "end"} {
		err := m.RunAndStep((&logSolver{machine: m}).fail(name), weights)
		require.ErrorIs(t, err, errSolver, name)
		require.ErrorContains(t, err, "graph: machine: ")
	}
	require.NoError(t, m.RunAndStep(s, weights))

	require.Equal(t, graph.Backend(b), m.Backend())
	require.NotNil(t, m.Stream())
	require.Nil(t, m.HalfCopy(n.weights[0]).Buf)
	require.Zero(t, m.HalfType())
	half := newMachine(t, n.graph, graph.WithBackend(fakedevice.NewHalf()), graph.WithPrecision(graph.BF16))
	require.Equal(t, n.weights[0].Shape(), half.HalfCopy(n.weights[0]).Shape)
	require.Nil(t, half.HalfCopy(n.targets).Buf)
	require.Equal(t, ops.BFloat16, half.HalfType())
	require.NoError(t, m.Close())
	require.Nil(t, m.Stream())
	require.NoError(t, r.Close())
}

// TestSolverFollowsTheNode: a step writes the half-precision copy of the node that the solver started with, and refuses
// another node.
func TestSolverFollowsTheNode(t *testing.T) {
	n := newTiny(t)
	x := newTrainer(t, fakedevice.NewHalf(), n.weights, graph.WithPrecision(graph.BF16))
	x.weights[0] = struct {
		G.ValueGrad
		G.Namer
	}{n.weights[0], n.weights[0]}
	x.step(t, true)
	require.ErrorContains(t, x.RunAndStep(x.solver, G.NodesToValueGrads(n.weights)), "w1 is another node")
	x.step(t, true)
	x.close(t)
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
