package tinylm

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// tape runs a model on Gorgonia's own machine.
func tape(m *Model) (G.VM, error) { return G.NewTapeMachine(m.Graph()), nil }

func goldenConfig(g testutil.Golden) Config {
	c := g.Config
	return Config{Vocab: c.Vocab, Context: c.S, Layers: c.Layers, NSAConfig: nn.NSAConfig{
		Dim: c.Dim, Heads: c.Hq, KVHeads: c.Hkv, KeyDim: c.D, ValueDim: c.Dv,
		Params: opcases.ParamsOf(c),
		Phi:    nn.Phi(c.Phi), PhiHidden: c.PhiHidden, GateHidden: c.GateHidden,
	}}
}

// goldenModel returns a model with the weights of g in type dt, and with the first tokens of g. The weights are on b,
// unless it is nil.
func goldenModel(t testing.TB, g testutil.Golden, dt tensor.Dtype, b graph.Backend, opts ...ModelOption) *Model {
	t.Helper()
	w := newTestWeights(t, goldenConfig(g), dt, 0)
	for name, v := range w.Tensors {
		require.Equal(t, tensor.Shape(g.Shape(t, "param."+name)), v.Shape(), name)
		require.NoError(t, nn.Assign(v, tensor.New(tensor.WithShape(v.Shape()...),
			tensor.WithBacking(g.F64(t, "param."+name)))))
	}
	for name := range g.File.Tensors {
		if p, ok := strings.CutPrefix(name, "param."); ok {
			require.Contains(t, w.Tensors, p)
		}
	}
	m := newTestModel(t, w, b, g.Config.B, g.Config.S, opts...)
	setGoldenTokens(t, m, g, 0)
	return m
}

func newTestWeights(t testing.TB, c Config, dt tensor.Dtype, seed uint64) *Weights {
	t.Helper()
	return testutil.Must(NewWeights(c, dt, seed))(t)
}

// newTestModel returns a model with gradients. Its weights are on b, unless it is nil. The end of the test closes the
// model.
func newTestModel(t testing.TB, w *Weights, b graph.Backend, batch, seq int, opts ...ModelOption) *Model {
	t.Helper()
	if b != nil {
		require.NoError(t, w.MoveTo(b))
		t.Cleanup(func() { require.NoError(t, w.Free()) })
	}
	return testutil.Closing(NewModel(w, batch, seq, append(opts, WithGradients())...))(t)
}

func newTestSolver(t testing.TB, opts ...optim.AdamWOption) *optim.AdamW {
	t.Helper()
	return testutil.Must(optim.NewAdamW(opts...))(t)
}

func setGoldenTokens(t testing.TB, m *Model, g testutil.Golden, step int) {
	n := g.Config.B * g.Config.S
	copy(m.Tokens(), g.I32(t, "tokens")[step*n:])
	m.NextTokens()
}

// bounds are the relative tolerances of climb.
type bounds struct{ loss, grad, step float64 }

// TestModelMatchesGoldens compares models on the host with goldens, on TapeMachine and Machine, in both types. Both
// machines give the same bits, except in wide layers, where linear.FusedGrad sums in another order.
func TestModelMatchesGoldens(t *testing.T) {
	for dt, within := range map[tensor.Dtype]bounds{tensor.Float64: {1e-8, 1e-8, 1e-8},
		tensor.Float32: {1e-5, 1e-4, 1e-3}} {
		t.Run(dt.Name(), func(t *testing.T) {
			testutil.EachGolden(t, testutil.TinyLM, func(t *testing.T, g testutil.Golden) {
				var runs []map[string][]float64
				for _, opts := range [][]ModelOption{{WithVM(tape)}, nil} {
					m := goldenModel(t, g, dt, nil, opts...)
					require.NoError(t, graph.CheckGraph(m.Graph()))
					losses, norms := climb(t, m, g, within, goldenSteps)
					run := bits(t, m.weights)
					run["losses"], run["norms"] = losses, norms
					runs = append(runs, run)
				}
				if c := g.Config; max(c.Hq*c.D, c.Hq*c.Dv, c.Dim) <= 512 {
					require.Equal(t, runs[0], runs[1])
				}
			})
		})
	}
}

// climb compares a model with a golden, one stage after the other: logits, loss, every gradient, then the losses and
// gradient norms of ten steps. steps takes these steps, and climb returns their losses and norms. In float32, a golden
// that is not built in has only the first two stages. No bound holds for the later ones if a norm is over one number or
// two scores nearly tie.
func climb(t *testing.T, m *Model, g testutil.Golden, within bounds,
	steps func(testing.TB, *Model, testutil.Golden) (losses, norms []float64)) (losses, norms []float64) {
	require.NoError(t, m.Run())
	logits := testutil.Must(m.Logits())(t)
	g.Within(t, "logits", testutil.Floats(t, logits.Data()), within.loss)
	g.Within(t, "loss", []float64{testutil.Must(m.Loss())(t)}, within.loss)
	if m.learnables[0].Dtype() == tensor.Float32 && !g.BuiltIn {
		return steps(t, m, g)
	}
	for _, n := range m.Learnables() {
		v := testutil.Must(n.Grad())(t)
		v = testutil.Must(graph.HostValue(v))(t)
		g.Within(t, "grad."+n.Name(), testutil.Floats(t, v.Data()), within.grad)
	}
	losses, norms = steps(t, m, g)
	g.Within(t, "losses", losses, within.step)
	g.Within(t, "grad_norms", norms, within.step)
	return losses, norms
}

func goldenSchedule(g testutil.Golden) optim.AdamWOption {
	c := g.Config
	return optim.WithSchedule(optim.WarmupCosine{LR: c.LR, Warmup: c.Warmup, Total: c.Total, Floor: c.Floor})
}

// goldenSteps takes the steps of g. It returns the loss before each step, and its gradient norm.
func goldenSteps(t testing.TB, m *Model, g testutil.Golden) (losses, norms []float64) {
	solver := testutil.Must(optim.NewAdamW(goldenSchedule(g)))(t)
	for i := range g.Config.Total {
		setGoldenTokens(t, m, g, i)
		loss := testutil.Must(m.LossAndStep(solver))(t)
		losses, norms = append(losses, loss), append(norms, testutil.Must(solver.Norm())(t))
	}
	return losses, norms
}
