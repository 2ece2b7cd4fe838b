package tinylm

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestAccumulation: one micro-batch a step changes no result, a step allocates nothing, and an error drops the sums so far.
func TestAccumulation(t *testing.T) {
	losses := func(opts ...ModelOption) (list []float64) {
		w := newTestWeights(t, small(), tensor.Float32, 1)
		m := newTestModel(t, w, nil, 2, 64, opts...)
		solver := newTestSolver(t, m)
		next := windows(m, prose, 1)
		for range 3 {
			next()
			require.NoError(t, m.RunAndStep(solver))
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
			testutil.Check(m.RunAndStep(solver))
		}))

		require.NoError(t, solver.SetLR(0))
		step := func() float64 {
			require.NoError(t, m.RunAndStep(solver))
			return testutil.Must(solver.Norm())(t)
		}
		norm := step()
		m.Tokens()[3]++
		require.NoError(t, m.Run())
		m.Tokens()[0] = 256
		require.ErrorContains(t, m.Run(), "id 256 at (0, 0)")
		m.Tokens()[0] = 'a'
		require.NoError(t, m.Run())
		require.ErrorContains(t, m.RunAndStep(nil), "tinylm: step: ")
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
	require.ErrorContains(t, testutil.Err(NewModel(w, 2, 64, WithGradients(), WithAccumulation(), WithVM(tape))), "WithVM excludes")
	double := newTestWeights(t, small(), tensor.Float64, 1)
	require.ErrorContains(t, testutil.Err(NewModel(double, 2, 64, WithGradients(), WithAccumulation())), "differs in type or graph")
}

// TestNewPlan: the plan without weights equals the plan of the model's machine.
func TestNewPlan(t *testing.T) {
	w := newTestWeights(t, small(), tensor.Float32, 1)
	for _, opts := range [][]ModelOption{
		nil, {WithGradients()}, {WithGradients(), WithAccumulation(), WithRecompute(), WithDocuments(9), WithoutLogits(), WithMachine(graph.WithCapture())},
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
