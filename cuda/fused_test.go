package cuda_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/cudatest"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// TestTrainingIsFused: a training plan in half precision has each fusion in each layer and needs hardly more memory.
func TestTrainingIsFused(t *testing.T) {
	c := tinylm.Tiny()
	w := testutil.Must(tinylm.NewWeights(c, tensor.Float32, 1))(t)
	plan := func(unfused ...string) (p graph.Plan, counts map[string]int) {
		b, _ := open(t)
		machine := tinylm.WithMachine(graph.WithBackend(b), graph.WithPrecision(graph.BF16),
			graph.WithPolicy(graph.Policy{Unfused: unfused}))
		m := testutil.Closing(tinylm.NewModel(w, 4, 256, tinylm.WithGradients(), tinylm.WithoutLogits(), machine))(t)
		p, counts = m.Machine().Plan(), map[string]int{}
		for _, s := range p.Steps {
			counts[s.Op]++
		}
		return p, counts
	}
	fused, got := plan()
	plain, was := plan(graph.UnfusedAll)
	for op, steps := range map[string][2]int{ // before and after
		"linear":                   {12*c.Layers + 1, c.Layers + 1}, // the second of the gates, the head
		"linears":                  {0, c.Layers},
		"linear with add":          {0, 2 * c.Layers},
		"linear with silu":         {0, c.Layers}, // the first of the MLP
		"input gradient of linear": {12*c.Layers + 1, 3*c.Layers + 1},
		"input gradient of linear with gradient of silu": {0, c.Layers},
		"weight gradient of linear":                      {12*c.Layers + 1, 4*c.Layers + 1},
		"gradient of linears":                            {0, c.Layers},
		"rope":                                           {4 * c.Layers, 0},
		"inverse rope":                                   {4 * c.Layers, 0},
		"add":                                            {6 * c.Layers, 0},
		"gradient of add":                                {2 * c.Layers, 0},
		"gradient of rms norm":                           {2*c.Layers + 1, 1},
		"gradient of rms norm with add":                  {0, 2 * c.Layers},
	} {
		require.Equal(t, steps, [2]int{was[op], got[op]}, op)
	}
	t.Logf("arena and workspace: %d + %d bytes, unfused %d + %d", fused.Arena, fused.Workspace, plain.Arena,
		plain.Workspace)
	require.Less(t, float64(fused.Arena+fused.Workspace), 1.1*float64(plain.Arena+plain.Workspace))
}

// TestRecomputeMemory: steps that recompute activations run the kernels of the forward pass. The plan needs at
// most 40 % of the memory.
func TestRecomputeMemory(t *testing.T) {
	c := tinylm.Base()
	for _, p := range []graph.Precision{graph.F32, graph.BF16} {
		plan := func(opts ...tinylm.ModelOption) graph.Plan {
			b, _ := open(t)
			machine := tinylm.WithMachine(graph.WithBackend(b), graph.WithPrecision(p),
				graph.WithPolicy(graph.Policy{}))
			opts = append(opts, tinylm.WithGradients(), tinylm.WithoutLogits(), machine)
			return testutil.Must(tinylm.NewPlan(c, 16, 2048, opts...))(t)
		}
		plain, again := plan(), plan(tinylm.WithRecompute())
		t.Logf("%v: arena and workspace %d + %d bytes, recomputed %d + %d", p, plain.Arena, plain.Workspace,
			again.Arena, again.Workspace)
		require.Less(t, float64(again.Memory()), 0.4*float64(plain.Memory()))
		name := func(s graph.PlanStep) string { return fmt.Sprint(s.Node.ID(), s.Op, s.Implementation, s.Inputs) }
		forward := map[string]bool{}
		for _, s := range plain.Steps {
			forward[name(s)] = true
		}
		for _, s := range again.Steps {
			require.True(t, forward[name(s)], "%s", name(s))
		}
	}
}

// TestFusedTrainingOnGPU compares the loss and the gradients of a fused and of an unfused plan: in float32 with each
// other, in half precision by how far they are from float32. All blocks are chosen, so that no choice depends on a
// rounding. A captured run has the bits of an eager one.
func TestFusedTrainingOnGPU(t *testing.T) {
	b := cudatest.Open(t)
	c := tinylm.Tiny()
	const tokens = 96
	require.Equal(t, tokens, c.TopN*c.SelectBlock)
	w := testutil.Must(tinylm.NewWeights(c, tensor.Float32, 1))(t)
	run := func(opts ...graph.Option) map[string][]float64 {
		const batch = 3
		m := testutil.Closing(tinylm.NewModel(w, batch, tokens, tinylm.WithGradients(),
			tinylm.WithMachine(append(opts, graph.WithBackend(b))...)))(t)
		copy(m.Tokens(), testutil.Tokens(3, batch*tokens, w.Config.Vocab))
		m.NextTokens()
		for range 3 {
			require.NoError(t, m.Run())
		}
		require.Zero(t, m.Machine().Counts()["host"], "%v", m.Machine().Plan())
		all := map[string][]float64{"loss": {testutil.Must(m.Loss())(t)}}
		for _, n := range m.Learnables() {
			all["gradient of "+n.Name()] = numbers(t, testutil.Must(n.Grad())(t))
		}
		require.Len(t, all, 1+len(w.Tensors))
		return all
	}
	results := func(p graph.Precision, unfused ...string) map[string][]float64 {
		return run(graph.WithPrecision(p), graph.WithPolicy(graph.Policy{Unfused: unfused}))
	}
	exact, captured := results(graph.F32, graph.UnfusedAll), run(graph.WithCapture(), graph.WithPolicy(graph.Policy{}))
	for name, got := range results(graph.F32) {
		testutil.Within(t, name, got, exact[name], 1e-5)
		require.Equal(t, bits([][]float64{got}), bits([][]float64{captured[name]}), name)
	}
	for _, p := range []struct {
		precision graph.Precision
		unit      float64 // roundoff
	}{{graph.BF16, 0x1p-8}, {graph.FP16, 0x1p-11}} {
		plain, fused := results(p.precision, graph.UnfusedAll), results(p.precision)
		for name, want := range exact {
			e := testutil.RelErr(plain[name], want)
			testutil.Within(t, fmt.Sprintf("%v, %s (unfused error %.3g)", p.precision, name, e), fused[name], want,
				2*e+p.unit)
		}
	}
}
