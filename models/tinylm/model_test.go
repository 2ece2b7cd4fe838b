package tinylm

import (
	"math"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// prose is a text that a small model learns quickly.
var prose = []byte(strings.Repeat("The block of a query is clamped to the query; blocks before it are whole. ", 400))

// windows returns a function that fills the batch of m with random windows of text.
func windows(m *Model, text []byte, seed uint64) func() {
	r := rand.New(rand.NewPCG(seed, 2))
	return func() {
		for row := range m.batch {
			at := r.IntN(len(text) - m.seq)
			for i := range m.seq {
				m.tokens[row*m.seq+i], m.targets[row*m.seq+i] = int32(text[at+i]), int32(text[at+i+1])
			}
		}
	}
}

func TestTrainingStepDoesNotAllocate(t *testing.T) {
	w := newTestWeights(t, small(), tensor.Float32, 1)
	m := newTestModel(t, w, nil, 4, w.Config.Context)
	solver := testutil.Must(optim.NewAdamW())(t)
	next := windows(m, prose, 1)
	require.Zero(t, testing.AllocsPerRun(10, func() {
		next()
		if _, err := m.LossAndStep(solver); err != nil {
			t.Error(err)
		}
	}))
}

func TestModelRefuses(t *testing.T) {
	w := newTestWeights(t, small(), tensor.Float32, 1)
	for _, c := range []struct {
		w          *Weights
		batch, seq int
		opts       []ModelOption
		message    string
	}{
		{nil, 1, 8, nil, "no weights"},
		{w, 0, 8, nil, "model of 0 x 8 tokens"},
		{w, 1, 8, []ModelOption{WithVM(func(*Model) (G.VM, error) { return nil, nil })}, "no VM"},
		{w, 1, 8, []ModelOption{nil}, "model of 1 x 8 tokens: nil option"},
		{w, 1, 8, []ModelOption{WithMachine(nil)}, "graph: machine: nil option"},
		{w, 1 << 40, 8, nil, "at most 67108864 tokens"},
		{w, 1, 8, []ModelOption{WithVM(tape), WithMachine(graph.WithCapture())}, "WithVM excludes WithMachine"},
	} {
		require.ErrorContains(t, testutil.Err(NewModel(c.w, c.batch, c.seq, c.opts...)), c.message)
	}
	for _, none := range []G.Solver{nil, (*optim.AdamW)(nil)} {
		require.ErrorContains(t, testutil.Err(newTestModel(t, w, nil, 1, 8).LossAndStep(none)), "no solver")
	}
}

// TestLossScaleCancels: the weights after some steps have the same bits at any scale.
func TestLossScaleCancels(t *testing.T) {
	var want map[string][]float64
	for _, scale := range []float64{0, 1, 1 << 16} {
		w := newTestWeights(t, small(), tensor.Float32, 1)
		var opts []ModelOption
		if scale > 0 {
			opts = append(opts, WithLossScale())
		}
		solver := newTestSolver(t)
		m := newTestModel(t, w, nil, 2, 64, append(opts, WithOptimizer(solver))...)
		if scale > 0 {
			require.NoError(t, m.SetLossScale(scale))
			require.ErrorContains(t, m.SetLossScale(0), "above 0")
		} else {
			require.ErrorContains(t, m.SetLossScale(1), "built without one")
		}
		next := windows(m, prose, 1)
		for range 3 {
			next()
			require.NoError(t, m.Step())
		}
		norm := testutil.Must(solver.Norm())(t)
		got := bits(t, w)
		got["norm"] = []float64{norm}
		if want == nil {
			want = got
		}
		require.Equal(t, want, got)
	}
}

// TestModelWithoutSelected: a model without the selected branch has neither its ops nor its weights, and keeps the
// other parts.
func TestModelWithoutSelected(t *testing.T) {
	c := small()
	c.Without = decode.BranchesOf(decode.Selected)
	m := newTestModel(t, newTestWeights(t, c, tensor.Float32, 1), nil, 2, 64, WithParts(), WithOptimizer(newTestSolver(t)))
	require.NoError(t, m.Step())
	for _, n := range m.Graph().AllNodes() {
		require.NotContains(t, n.String(), "select")
		require.NotContains(t, n.Name(), "_sel")
	}
	for _, l := range m.Layers() {
		require.Nil(t, l.Blocks)
		require.Equal(t, tensor.Shape{2, 64, c.Heads, 2}, testutil.Must(graph.HostValue(l.Gates.Value()))(t).Shape())
	}
	selected := c.Layers * (c.Dim*c.KVHeads*(c.KeyDim+c.ValueDim) + c.Heads*(c.GateHidden+1))
	require.Equal(t, small().Parameters()-selected, c.Parameters())
}

// TestImportsNoPlotting: the model does not import the packages that display a training run.
func TestImportsNoPlotting(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip(err)
	}
	packages := string(testutil.Must(exec.Command("go", "list", "-deps", ".").Output())(t))
	require.Contains(t, packages, "gorgonia.org/gorgonia\n")
	for _, name := range []string{"gonum.org/v1/plot", "progressbar"} {
		require.NotContains(t, packages, name)
	}
}

func TestGateStatistics(t *testing.T) {
	var s GateStatistics
	s.Add([3]float64{1, 0, 0}, 0.5) // a share of 0 adds nothing to the entropy
	s.Add([3]float64{0.5, 0.5, 0.5}, 0.5)
	require.InDeltaSlice(t, []float64{0.75, 0.25, 0.25}, s.Mean[:], 1e-12)
	require.InDelta(t, math.Log(3)/2, s.Entropy, 1e-12)
}

// TestMain: no test leaves a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestAccumulation: one micro-batch a step changes no result, a step allocates nothing, and an error drops the sums so
// far.
func TestAccumulation(t *testing.T) {
	losses := func(opts ...ModelOption) (list []float64) {
		w := newTestWeights(t, small(), tensor.Float32, 1)
		solver := newTestSolver(t)
		m := newTestModel(t, w, nil, 2, 64, append(opts, WithOptimizer(solver))...)
		next := windows(m, prose, 1)
		for range 3 {
			next()
			require.NoError(t, m.Step())
			list = append(list, testutil.Must(m.Loss())(t))
			next()
			list = append(list, testutil.Must(m.LossAndStep(solver))(t), testutil.Must(solver.Norm())(t))
		}
		if len(opts) == 0 {
			return list
		}
		next()
		require.Zero(t, testing.AllocsPerRun(5, func() {
			testutil.Check(m.Run())
			testutil.Check(m.Step())
		}))

		require.NoError(t, solver.SetLR(0))
		step := func() float64 {
			require.NoError(t, m.Step())
			return testutil.Must(solver.Norm())(t)
		}
		norm := step()
		m.Tokens()[3]++
		require.NoError(t, m.Run())
		m.Tokens()[0] = 256
		require.ErrorContains(t, m.Run(), "id 256 at (0, 0)")
		m.Tokens()[0] = 'a'
		require.NoError(t, m.Run())
		require.NoError(t, m.Machine().ZeroGrads())
		*m.accumulated = accumulated{}
		next = windows(m, prose, 1)
		next()
		again := step()
		require.NotEqual(t, norm, again)
		require.Equal(t, again, step())

		for i := range m.Targets() {
			m.Targets()[i] = -1
		}
		require.Zero(t, m.NumTargets())
		require.NoError(t, m.Run())
		require.Zero(t, step(), "no targets, no gradients")
		next = windows(m, prose, 1)
		require.NoError(t, m.Run())
		next()
		require.InEpsilon(t, again, step(), 1e-6, "a batch without targets weighs nothing")
		return list
	}
	require.Equal(t, losses(), losses(WithAccumulation()))
}

func TestAccumulationRefuses(t *testing.T) {
	w := newTestWeights(t, small(), tensor.Float32, 1)
	m := newTestModel(t, w, nil, 2, 64, WithAccumulation(), WithLossScale())
	require.NoError(t, m.SetLossScale(8))
	m.NextTokens()
	require.NoError(t, m.Run())
	require.NoError(t, m.SetLossScale(8))
	require.ErrorContains(t, m.SetLossScale(4), "loss scale is 4, want 8")
	require.ErrorContains(t, testutil.Err(m.LossAndStep(G.NewVanillaSolver())), "want an optim.AdamW")
	require.ErrorIs(t, testutil.Err(NewModel(w, 2, 64, WithAccumulation())), errNoGradients)
	require.ErrorIs(t, testutil.Err(NewModel(w, 2, 64, WithLossScale())), errNoGradients)
	require.ErrorContains(t, testutil.Err(NewModel(w, 2, 64, WithGradients(), WithAccumulation(), WithVM(tape))),
		"WithVM excludes")
	double := newTestWeights(t, small(), tensor.Float64, 1)
	require.ErrorContains(t, testutil.Err(NewModel(double, 2, 64, WithGradients(), WithAccumulation())),
		"differs in type or graph")
}

// TestNewPlan: the plan without weights equals the plan of the model's machine.
func TestNewPlan(t *testing.T) {
	w := newTestWeights(t, small(), tensor.Float32, 1)
	for _, opts := range [][]ModelOption{
		nil, {WithGradients()}, {WithOptimizer(newTestSolver(t)), WithAccumulation(), WithRecompute(), WithDocuments(9), WithoutLogits(),
			WithMachine(graph.WithCapture())},
	} {
		m := testutil.Closing(NewModel(w, 2, 64, opts...))(t)
		want, got := m.Machine().Plan(), testutil.Must(NewPlan(small(), 2, 64, opts...))(t)
		require.Equal(t, want.String(), got.String())
		require.Equal(t, want.Memory(), got.Memory())
		require.GreaterOrEqual(t, got.Inputs, 4*small().Parameters())
	}
	for message, err := range map[string]error{
		"plan of a model of 0 x 8 tokens": testutil.Err(NewPlan(small(), 0, 8)),
		"vocab is 0":                      testutil.Err(NewPlan(Config{}, 1, 8)),
		"only a graph.Machine has a plan": testutil.Err(NewPlan(small(), 1, 8, WithVM(tape))),
	} {
		require.ErrorContains(t, err, message)
	}
}
