package graph_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// logSolver is a solver that changes nothing and notes what the machine asks of it.
type logSolver struct {
	machine *graph.Machine
	calls   []string
	failing string // call that fails
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

// TestSolverOfOnesOwn: a Machine asks of a solver no more than the interface says, and records its Launch once.
func TestSolverOfOnesOwn(t *testing.T) {
	n := newTiny(t)
	b := newFake()
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
	require.ErrorContains(t, m.RunAndStep((*logSolver)(nil), weights), "not of this machine")
	require.ErrorContains(t, m.RunAndStep(&logSolver{}, weights), "not of this machine")

	require.Equal(t, graph.Backend(b), m.Backend())
	require.NotNil(t, m.Stream())
	require.Nil(t, m.HalfCopy(n.weights[0]).Buf)
	half := newMachine(t, n.graph, graph.WithBackend(newHalfFake()), graph.WithPrecision(graph.BF16))
	require.Equal(t, n.weights[0].Shape(), half.HalfCopy(n.weights[0]).Shape)
	require.Nil(t, half.HalfCopy(n.targets).Buf)
	require.NoError(t, m.Close())
	require.Nil(t, m.Stream())
	require.NoError(t, r.Close())
}

// TestSolverFollowsTheNode: the step writes the copy of the node that it began with, and refuses another one.
func TestSolverFollowsTheNode(t *testing.T) {
	n := newTiny(t)
	x := newTrainer(t, newHalfFake(), n.weights, graph.WithPrecision(graph.BF16))
	x.weights[0] = struct {
		G.ValueGrad
		G.Namer
	}{n.weights[0], n.weights[0]}
	x.step(t, true)
	require.ErrorContains(t, x.RunAndStep(x.solver, G.NodesToValueGrads(n.weights)), "w1 is another node than in the first step")
	x.step(t, true)
	x.close(t)
}

// TestSaveFromDevice: values on a device are saved, and are not written to.
func TestSaveFromDevice(t *testing.T) {
	n := newTiny(t)
	path := t.TempDir() + "/weights.safetensors"
	want := numbers(t, n.weights[0].Value())
	r := testutil.Must(graph.MoveInputs(newFake(), n.weights...))(t)
	require.NoError(t, nn.Save(path, n.weights))
	require.ErrorContains(t, nn.Load(path, n.weights), "in host memory")
	require.NoError(t, r.Close())
	clear(n.weights[0].Value().Data().([]float32))
	require.NoError(t, nn.Load(path, n.weights))
	require.Equal(t, want, numbers(t, n.weights[0].Value()))
}
