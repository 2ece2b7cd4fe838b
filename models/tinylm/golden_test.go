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
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// tape runs a model on Gorgonia's own machine.
func tape(m *Model) (G.VM, error) { return G.NewTapeMachine(m.Graph()), nil }

// machines are the ways to run a model.
var machines = []struct {
	name string
	opts []ModelOption
}{
	{"TapeMachine", []ModelOption{WithVM(tape)}},
	{"Machine", nil},
}

func goldenConfig(g testutil.Golden) Config {
	c := g.Config
	return Config{
		Vocab: c.Vocab, Context: c.S, Dim: c.Dim, Layers: c.Layers, Heads: c.Hq, KVHeads: c.Hkv, KeyDim: c.D, ValueDim: c.Dv,
		Params: ops.Params{BlockLen: c.BlockLen, Stride: c.Stride, SelectBlock: c.SelBlock, TopN: c.TopN, Window: c.Window},
		Phi:    nn.Phi(c.Phi), PhiHidden: c.PhiHidden, GateHidden: c.GateHidden,
	}
}

// goldenModel returns a model with the weights of g in type dt and its first tokens.
func goldenModel(t testing.TB, g testutil.Golden, dt tensor.Dtype, opts ...ModelOption) *Model {
	t.Helper()
	w, err := NewWeights(goldenConfig(g), dt, 0)
	require.NoError(t, err)
	for name, v := range w.Tensors {
		require.Equal(t, tensor.Shape(g.Shape(t, "param."+name)), v.Shape(), name)
		require.NoError(t, nn.Assign(v, tensor.New(tensor.WithShape(v.Shape()...), tensor.WithBacking(g.F64(t, "param."+name)))))
	}
	for name := range g.File.Tensors {
		if p, ok := strings.CutPrefix(name, "param."); ok {
			require.Contains(t, w.Tensors, p)
		}
	}
	m, err := NewModel(w, g.Config.B, g.Config.S, append(opts, WithGradients())...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	setGoldenTokens(t, m, g, 0)
	return m
}

// setGoldenTokens gives m the tokens of a step of g.
func setGoldenTokens(t testing.TB, m *Model, g testutil.Golden, step int) {
	n := g.Config.B * g.Config.S
	copy(m.Tokens(), g.I32(t, "tokens")[step*n:])
	m.NextTokens()
}

// TestModelMatchesGoldens is the ladder: logits, loss, every gradient, then the losses and gradient norms of ten steps.
func TestModelMatchesGoldens(t *testing.T) {
	for _, p := range []struct {
		dt               tensor.Dtype
		loss, grad, step float64 // relative tolerances
	}{{tensor.Float64, 1e-8, 1e-8, 1e-8}, {tensor.Float32, 1e-5, 1e-4, 1e-3}} {
		t.Run(p.dt.Name(), func(t *testing.T) {
			for _, g := range testutil.Goldens(t, testutil.TinyLM) {
				if p.dt == tensor.Float32 && !g.BuiltIn {
					continue // no bound holds where a norm is over one number or two scores nearly tie
				}
				for _, vm := range machines {
					t.Run(g.Name+"/"+vm.name, func(t *testing.T) {
						m := goldenModel(t, g, p.dt, vm.opts...)
						require.NoError(t, graph.CheckGraph(m.Graph()))
						require.NoError(t, m.Run())
						logits, err := m.Logits()
						require.NoError(t, err)
						testutil.Within(t, "logits", testutil.Floats(t, logits.Data()), g.F64(t, "logits"), p.loss)
						loss, err := m.Loss()
						require.NoError(t, err)
						testutil.Within(t, "loss", []float64{loss}, g.F64(t, "loss"), p.loss)
						for _, n := range m.Learnables() {
							v, err := n.Grad()
							require.NoError(t, err)
							testutil.Within(t, "gradient of "+n.Name(), testutil.Floats(t, v.Data()), g.F64(t, "grad."+n.Name()), p.grad)
						}
						losses, norms := goldenSteps(t, m, g)
						testutil.Within(t, "losses", losses, g.F64(t, "losses"), p.step)
						testutil.Within(t, "gradient norms", norms, g.F64(t, "grad_norms"), p.step)
					})
				}
			}
		})
	}
}

// goldenSteps takes the steps of g and returns the loss before and the gradient norm of each.
func goldenSteps(t testing.TB, m *Model, g testutil.Golden) (losses, norms []float64) {
	c := g.Config
	schedule := optim.WarmupCosine{LR: c.LR, Warmup: c.Warmup, Total: c.Total, Floor: c.Floor}
	solver, err := optim.NewAdamW(optim.WithSchedule(schedule))
	require.NoError(t, err)
	for i := range c.Total {
		setGoldenTokens(t, m, g, i)
		loss, err := m.LossAndStep(solver)
		require.NoError(t, err)
		norm, err := solver.Norm()
		require.NoError(t, err)
		losses, norms = append(losses, loss), append(norms, norm)
	}
	return losses, norms
}

// TestMachinesAgree compares the bits of TapeMachine and Machine.
func TestMachinesAgree(t *testing.T) {
	for _, g := range testutil.Goldens(t, testutil.TinyLM) {
		for _, dt := range []tensor.Dtype{tensor.Float32, tensor.Float64} {
			t.Run(g.Name+"/"+dt.Name(), func(t *testing.T) {
				var runs []map[string][]float64
				for _, vm := range machines {
					m := goldenModel(t, g, dt, vm.opts...)
					losses, norms := goldenSteps(t, m, g)
					run := map[string][]float64{"losses": losses, "norms": norms}
					for name, v := range m.Weights().Tensors {
						run[name] = testutil.Floats(t, v.Data())
					}
					runs = append(runs, run)
				}
				require.Equal(t, runs[0], runs[1])
			})
		}
	}
}
