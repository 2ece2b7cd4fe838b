package graph_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops"
)

// TestRecomputeSameBits: with activations computed again, gradients, losses and weights have the same bits over several steps, also
// where free memory is filled with NaN after each step.
func TestRecomputeSameBits(t *testing.T) {
	mlp, dense, packed := modelConfig(), modelConfig(), []tinylm.ModelOption{tinylm.WithDocuments(2 * 2)}
	mlp.Phi, mlp.PhiHidden, dense.Attention = nn.PhiMLP, 12, tinylm.Dense
	capture, half := graph.WithCapture(), graph.WithPrecision(graph.BF16)
	for name, c := range map[string]tinylm.Config{"nsa": modelConfig(), "mlp": mlp, "dense": dense} {
		for what, r := range map[string]modelRun{
			"cpu":            {batch: 2},
			"cpu, float64":   {batch: 2, double: true, poison: true},
			"packed":         {batch: 2, options: packed},
			"device":         {batch: 2, backend: fakedevice.New(), graph: []graph.Option{capture}},
			"device, packed": {batch: 2, backend: fakedevice.New(), options: packed},
			"device, sums":   {batch: 1, backend: fakedevice.New(), graph: []graph.Option{capture}},
			"bf16":           {batch: 2, backend: fakedevice.NewHalf(), graph: []graph.Option{half}},
			"bf16, sums":     {batch: 1, backend: fakedevice.NewHalf(), graph: []graph.Option{half, capture}},
			"unfused":        {batch: 2, graph: []graph.Option{unfused(graph.UnfusedAll)}},
		} {
			r.config, r.rows = c, 2
			grads, all := r.train(t)
			r.options = append(slices.Clone(r.options), tinylm.WithRecompute())
			againGrads, again := r.train(t)
			require.Equal(t, grads, againGrads, "%s, %s", name, what)
			require.Equal(t, all, again, "%s, %s", name, what)
		}
	}
}

// TestRecomputePlan: the steps of all layers but the last run twice, except those whose results are boundaries or integers.
// No memory is read after it is freed, and a deep model needs much less memory.
func TestRecomputePlan(t *testing.T) {
	c := modelConfig()
	c.Layers = 12
	for attention, count := range map[tinylm.Attention]int{tinylm.NSA: 13, tinylm.Dense: 6} { // steps of a layer
		c.Attention = attention
		plan := func(opts ...tinylm.ModelOption) graph.Plan {
			opts = append(opts, tinylm.WithGradients(), tinylm.WithoutLogits(), tinylm.WithMachine(graph.WithPolicy(graph.Policy{})))
			return testutil.Must(tinylm.NewPlan(c, 64, c.Context, opts...))(t)
		}
		plain, again := plan(), plan(tinylm.WithRecompute())
		require.Less(t, float64(again.Memory()), 0.4*float64(plain.Memory()))
		require.Contains(t, again.String(), "recomputed; linears: nodes ")
		require.NotContains(t, plain.String(), "recomputed")
		ran := map[string]int{}
		for _, s := range again.Steps {
			if s.Recomputed {
				ran[s.Op]++
			}
		}
		steps := 0
		for _, n := range ran {
			steps += n
		}
		require.Len(t, again.Steps, len(plain.Steps)+steps)
		require.Equal(t, 1+count*(c.Layers-1), steps, "%v", ran)
		require.Zero(t, ran["select blocks"], "the choice is kept")
		require.Equal(t, c.Layers-1, ran["linear with add"], "that of the attention, since that of the MLP makes the boundary")
		require.Equal(t, 1, ran["embedding"])
	}
}

// TestRecomputeKeeps: results of Gorgonia's ops are kept, because these may be random. Values that nodes show after a run
// are kept, too.
func TestRecomputeKeeps(t *testing.T) {
	g := G.NewGraph()
	x := single(g, "x", func(i int) float64 { return float64(i%5) - 2 }, 4, 8)
	w := single(g, "w", func(i int) float64 { return float64(i%7) / 7 }, 8, 8)
	shown := G.Must(ops.SiLU(G.Must(ops.Linear(x, w))))
	dropped := G.Must(G.Dropout(G.Must(ops.Linear(shown, w)), 0.5))
	hidden := G.Must(ops.SiLU(dropped))
	boundary := G.Must(ops.Linear(hidden, w))
	behind := G.Must(ops.SiLU(boundary))
	loss := G.Must(G.Mean(behind))
	testutil.Must(graph.Grad(loss, w))(t)
	plan := testutil.Must(graph.NewPlan(g, graph.WithRecompute(boundary), graph.WithKeep(shown)))(t)
	var again []string
	for _, s := range plan.Steps {
		if s.Recomputed {
			require.NotNil(t, s.Spec)
			again = append(again, s.Op)
		}
	}
	require.Equal(t, []string{"silu", "linear", "linear with silu"}, again, "the last one for what SiLU is of, not for what is shown")
	reads := map[bool]int{} // by PlanStep.Recomputed: the last reader of the shown value
	for _, s := range plan.Steps {
		if slices.Contains(s.Replaces, shown) {
			reads[s.Recomputed] = s.Outputs[0].Last
		}
	}
	require.Equal(t, len(plan.Steps), reads[false], "shown after a run")
	require.Less(t, reads[true], len(plan.Steps))
}

func TestRecomputeRefuses(t *testing.T) {
	n := newTiny(t)
	inner := testutil.Must(graph.Grad(n.loss, n.hidden))(t)[0]
	plain := G.Must(ops.SiLU(single(G.NewGraph(), "x", func(int) float64 { return 1 }, 2)))
	planned := func(g *G.ExprGraph, boundaries ...*G.Node) error {
		return testutil.Err(graph.NewPlan(g, graph.WithRecompute(boundaries...)))
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{planned(n.graph, n.hidden), ""},
		{planned(n.graph), "graph: plan: recompute: no boundaries"},
		{planned(n.graph, nil), "boundary nil node"},
		{planned(n.graph, newTiny(t).hidden), "recompute: boundary op silu (node"},
		{planned(n.graph, n.weights[0]), `"w1" (node 1, shape (12, 8)) is an input`},
		{planned(n.graph, n.weights[0].Deriv()), "not inside the forward pass"},
		{planned(n.graph, n.hidden, inner), "not inside the forward pass"},
		{planned(n.graph, n.loss), "not inside the forward pass"},
		{planned(plain.Graph(), plain), "the graph has no derivatives"},
		{testutil.Err(graph.NewMachine(n.graph, graph.WithRecompute())), "graph: machine: recompute: no boundaries"},
		{testutil.Err(tinylm.NewPlan(modelConfig(), 1, 8, tinylm.WithRecompute())), "without gradients"},
	} {
		requireError(t, c.want, c.err)
	}
}
