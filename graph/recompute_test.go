package graph_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops"
)

// models are small models with all kinds of layers.
func models() map[string]tinylm.Config {
	mlp, dense := modelConfig(), modelConfig()
	mlp.Phi, mlp.PhiHidden = nn.PhiMLP, 12
	dense.Attention = tinylm.Dense
	return map[string]tinylm.Config{"nsa": modelConfig(), "mlp": mlp, "dense": dense}
}

// TestRecomputeSameBits: with activations computed again, gradients, losses and weights have the same bits over several
// steps.
func TestRecomputeSameBits(t *testing.T) {
	packed := tinylm.WithDocuments(2 * 2)
	for name, c := range models() {
		for what, r := range map[string]modelRun{
			"cpu":            {batch: 2},
			"cpu, float64":   {batch: 2, double: true},
			"packed":         {batch: 2, options: []tinylm.ModelOption{packed}},
			"device":         {batch: 2, backend: fakedevice.New(), graph: []graph.Option{graph.WithCapture()}},
			"device, packed": {batch: 2, backend: fakedevice.New(), options: []tinylm.ModelOption{packed}},
			"device, sums":   {batch: 1, backend: fakedevice.New(), graph: []graph.Option{graph.WithCapture()}},
			"bf16":           {batch: 2, backend: fakedevice.NewHalf(), graph: []graph.Option{graph.WithPrecision(graph.BF16)}},
			"bf16, sums":     {batch: 1, backend: fakedevice.NewHalf(), graph: []graph.Option{graph.WithPrecision(graph.BF16), graph.WithCapture()}},
			"unfused":        {batch: 2, graph: []graph.Option{unfused(graph.UnfusedAll)}},
		} {
			r.config, r.rows = c, 2
			grads, all := r.train(t)
			r.options = append(r.options, tinylm.WithRecompute())
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

// TestRecomputeReadsNothingFree fills free memory with NaN after each step.
func TestRecomputeReadsNothingFree(t *testing.T) {
	for name, c := range models() {
		w := testutil.Must(tinylm.NewWeights(c, tensor.Float64, 1))(t)
		var want [][]float64
		for _, opts := range [][]tinylm.ModelOption{{tinylm.WithRecompute()}, nil} {
			m := testutil.Closing(tinylm.NewModel(w, 2, c.Context, append(opts, tinylm.WithGradients())...))(t)
			copy(m.Tokens(), testutil.Tokens(3, len(m.Tokens()), c.Vocab))
			m.NextTokens()
			m.Machine().PoisonFreed()
			for range 2 {
				require.NoError(t, m.Run())
			}
			var got [][]float64
			for _, n := range m.Learnables() {
				got = append(got, slices.Clone(numbers(t, testutil.Must(n.Grad())(t))))
			}
			if want == nil {
				want = got
			}
			require.Equal(t, want, got, name)
		}
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
	other := newTiny(t)
	inner := testutil.Must(graph.Grad(n.loss, n.hidden))(t)[0]
	plain := G.NewGraph()
	double := G.Must(ops.SiLU(single(plain, "x", func(int) float64 { return 1 }, 2)))
	for _, c := range []struct {
		graph      *G.ExprGraph
		boundaries G.Nodes
		message    string
	}{
		{n.graph, nil, "graph: plan: recompute: no boundaries"},
		{n.graph, G.Nodes{nil}, "boundary nil node"},
		{n.graph, G.Nodes{other.hidden}, "recompute: boundary op silu (node"},
		{n.graph, G.Nodes{n.weights[0]}, `"w1" (node 1, shape (12, 8)) is an input`},
		{n.graph, G.Nodes{n.weights[0].Deriv()}, "not inside the forward pass"},
		{n.graph, G.Nodes{n.hidden, inner}, "not inside the forward pass"},
		{n.graph, G.Nodes{n.loss}, "not inside the forward pass"},
		{plain, G.Nodes{double}, "the graph has no derivatives"},
	} {
		require.ErrorContains(t, testutil.Err(graph.NewPlan(c.graph, graph.WithRecompute(c.boundaries...))), c.message)
	}
	require.ErrorContains(t, testutil.Err(graph.NewMachine(n.graph, graph.WithRecompute())), "graph: machine: recompute: no boundaries")
	_, err := graph.NewPlan(n.graph, graph.WithRecompute(n.hidden))
	require.NoError(t, err)
	_, err = tinylm.NewPlan(modelConfig(), 1, 8, tinylm.WithRecompute())
	require.ErrorContains(t, err, "without gradients")
}
