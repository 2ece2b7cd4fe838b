package tinylm_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// TestTrainingIsFused: the plan of a training step has each fusion in each layer. Its arena is no larger than without
// fusions, and the results are the same.
func TestTrainingIsFused(t *testing.T) {
	c := tinylm.Tiny()
	w := testutil.Must(tinylm.NewWeights(c, tensor.Float64, 1))(t)
	run := func(p graph.Policy) (graph.Plan, float64, [][]float64) {
		m := testutil.Must(tinylm.NewModel(w, 2, 50, tinylm.WithGradients(), tinylm.WithMachine(graph.WithPolicy(p))))(t)
		for i := range m.Tokens() {
			m.Tokens()[i] = int32(i * i % c.Vocab)
		}
		m.NextTokens()
		require.NoError(t, m.Run())
		loss := testutil.Must(m.Loss())(t)
		var grads [][]float64
		for _, n := range m.Learnables() {
			grads = append(grads, append([]float64(nil), testutil.Must(n.Grad())(t).Data().([]float64)...))
		}
		plan := m.Machine().Plan()
		require.NoError(t, m.Close())
		return plan, loss, grads
	}
	plain, want, wantGrads := run(graph.Policy{Unfused: []string{graph.UnfusedAll}})
	fused, got, grads := run(graph.Policy{})
	require.Equal(t, want, got)
	for i, g := range grads {
		testutil.Within(t, c.LearnableParams()[i].Name, g, wantGrads[i], 1e-12)
	}
	rules := map[string]int{"copies": len(fused.Copies)}
	for _, s := range fused.Steps {
		if s.Rule != "" {
			rules[s.Rule]++
		}
	}
	require.Equal(t, map[string]int{
		"copies": 2 * c.Layers, "linears": c.Layers, "linears-grad": c.Layers, "linear-add": 2 * c.Layers,
		"norm-grad-add": 2 * c.Layers,
		"linear-silu":   c.Layers, "silu-grad": 2 * c.Layers, "gate-sigmoid": c.Layers, "deltas": 4 * c.Layers,
	}, rules)
	for _, s := range fused.Steps {
		require.NotContains(t, s.Op, "rope", "a part of linears and their gradient")
		require.NotEqual(t, "add", s.Op, "a part of products and of gradients")
	}
	require.LessOrEqual(t, fused.Arena, plain.Arena)
	require.Less(t, 3*len(fused.Steps), 2*len(plain.Steps))
}

// TestRecomputeMemory: for Base() at 16 x 2048, recompute reduces the planned memory to at most 40 %, for roughly a
// fifth more arithmetic.
func TestRecomputeMemory(t *testing.T) {
	for _, attention := range []tinylm.Attention{tinylm.NSA, tinylm.Dense} {
		c := tinylm.Base()
		c.Attention = attention
		plan := func(opts ...tinylm.ModelOption) (memory, flops float64) {
			p := testutil.Must(tinylm.NewPlan(c, 16, 2048, append(opts, tinylm.WithGradients(), tinylm.WithoutLogits())...))(t)
			for _, s := range p.Steps {
				flops += s.Cost.FLOPs
			}
			return float64(p.Memory()), flops
		}
		memory, flops := plan()
		less, more := plan(tinylm.WithRecompute())
		t.Logf("%s: %.0f MiB with %.4g FLOPs, %.0f MiB with %.4g", attention, memory/(1<<20), flops, less/(1<<20), more)
		require.Less(t, less, 0.4*memory)
		require.Less(t, more, 1.25*flops)
	}
}
