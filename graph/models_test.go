package graph_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops"
)

func modelConfig() tinylm.Config {
	return tinylm.Config{Vocab: 32, Context: 32, Layers: 3, NSAConfig: nn.NSAConfig{
		Dim: 16, Heads: 2, KVHeads: 1, KeyDim: 8, ValueDim: 8, GateHidden: 4,
		Params: ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 4, Window: 8},
	}}
}

// modelRun is a training of a model on a backend.
type modelRun struct {
	config  tinylm.Config
	backend graph.Backend // nil: the CPU
	rows    int           // rows of a step
	batch   int           // rows of a micro-batch
	options []tinylm.ModelOption
	graph   []graph.Option
	double  bool // float64
	poison  bool // free memory
}

const stepCount = 4

// train takes four steps, and returns the gradients of the first one and the bits of all losses, norms and weights.
func (r modelRun) train(t *testing.T) (grads map[string][]float64, all []float64) {
	t.Helper()
	c, micro := r.config, r.rows/r.batch
	dt := tensor.Float32
	if r.double {
		dt = tensor.Float64
	}
	w := testutil.Must(tinylm.NewWeights(c, dt, 1))(t)
	if r.backend != nil {
		require.NoError(t, w.MoveTo(r.backend))
		r.graph = append(r.graph, graph.WithBackend(r.backend))
	}
	solver := testutil.Must(optim.NewAdamW(optim.WithLR(1e-2)))(t)
	options := append([]tinylm.ModelOption{tinylm.WithOptimizer(solver), tinylm.WithMachine(r.graph...)}, r.options...)
	if micro > 1 {
		options = append(options, tinylm.WithAccumulation())
	}
	m := testutil.Must(tinylm.NewModel(w, r.batch, c.Context, options...))(t)
	if r.poison {
		m.Machine().PoisonFreed()
	}
	tokens := testutil.Tokens(3, stepCount*r.rows*c.Context, c.Vocab)
	predicted := 0
	for i := range stepCount * micro {
		copy(m.Tokens(), tokens[i*len(m.Tokens()):])
		if cu := m.CuSeqlens(); cu != nil { // two documents in each row
			for j := range cu {
				cu[j] = int32(min(j*c.Context/2+j%2*3, len(m.Tokens())))
			}
		}
		m.NextTokens()
		for j := range m.Targets() { // the number of targets depends on the place of the row in the step
			if row := i%micro*r.batch + j/c.Context; j%c.Context > 2*row || row == 9 {
				m.Targets()[j] = -1
			}
		}
		predicted += m.NumTargets()
		if i%micro < micro-1 {
			require.NoError(t, m.Run())
			continue
		}
		require.NoError(t, m.Step())
		all = append(all, testutil.Must(m.Loss())(t), testutil.Must(solver.Norm())(t))
		if i < micro {
			grads = map[string][]float64{}
			for _, n := range m.Learnables() {
				grads[n.Name()] = numbers(t, testutil.Must(n.Grad())(t))
				if micro > 1 {
					for j := range grads[n.Name()] {
						grads[n.Name()][j] *= float64(len(m.Targets())) / float64(predicted)
					}
				}
			}
		}
	}
	for _, n := range m.Learnables() {
		all = append(all, numbers(t, n.Value())...)
	}
	require.NoError(t, errors.Join(solver.Close(), m.Close(), w.Free()))
	return grads, all
}

// distance is the norm of a-b divided by the norm of b.
func distance(a, b []float64) float64 {
	difference, norm := 0.0, 0.0
	for i := range b {
		difference, norm = difference+(a[i]-b[i])*(a[i]-b[i]), norm+b[i]*b[i]
	}
	return math.Sqrt(difference / norm)
}

// TestAccumulationIsOneBatch: four micro-batches of four rows have the gradients of one batch of 16 rows, although they
// ignore different numbers of targets. Their steps have the same bits on the CPU and on a device, recorded or not, and
// upload nothing but inputs.
func TestAccumulationIsOneBatch(t *testing.T) {
	dense := modelConfig()
	dense.Attention = tinylm.Dense
	for name, c := range map[string]tinylm.Config{"nsa": modelConfig(), "dense": dense} {
		want, _ := modelRun{config: c, rows: 16, batch: 16}.train(t)
		var bits []float64
		for i, b := range []graph.Backend{nil, nil, fakedevice.New(), fakedevice.New()} {
			r := modelRun{config: c, backend: b, rows: 16, batch: 4}
			if i%2 == 1 {
				r.graph = append(r.graph, graph.WithCapture())
			}
			got, all := r.train(t)
			for param := range want {
				require.Less(t, distance(got[param], want[param]), 1e-6, "%s, %s", name, param)
			}
			if bits == nil {
				bits = all
			}
			require.Equal(t, bits, all, "%s, %d", name, i)
			if f, ok := b.(*fakedevice.Backend); ok {
				params := len(c.LearnableParams())
				require.Equal(t, params+stepCount*(4*3+1), f.Uploads,
					"weights; tokens, targets and loss scale of 4 micro-batches, numbers of the step")
				require.Equal(t, []int{0, 3}[i%2], f.Captures, "one for each of first, middle and last micro-batches")
			}
		}
	}
}

// TestZeroGrads: a sum begins again after ZeroGrads and after a Step, also in replays.
func TestZeroGrads(t *testing.T) {
	n := newTiny(t)
	x := newTrainer(t, fakedevice.New(), true, n.weights, graph.WithCapture(), graph.WithGradSums(n.weights[0]))
	require.NoError(t, errors.Join(x.solver.SetLR(0), x.RunAll()))
	one := gradient(t, n.weights[0])
	holds := func(times float64) {
		for i, g := range gradient(t, n.weights[0]) {
			require.Equal(t, times*one[i], g)
		}
	}
	for range 4 {
		require.NoError(t, x.RunAll())
		holds(2)
		require.NoError(t, errors.Join(x.ZeroGrads(), x.RunAll()))
		holds(1)
		x.step(t)
		require.NoError(t, x.RunAll())
		holds(1)
	}
	x.close(t)
	require.ErrorContains(t, x.ZeroGrads(), "closed")
}

// TestSumsInArena: the arena has each sum once.
func TestSumsInArena(t *testing.T) {
	c := modelConfig()
	plan := func(opts ...tinylm.ModelOption) graph.Plan {
		w := testutil.Must(tinylm.NewWeights(c, tensor.Float32, 1))(t)
		m := testutil.Must(tinylm.NewModel(w, 1, 8, append(opts, tinylm.WithGradients())...))(t)
		defer func() { require.NoError(t, m.Close()) }()
		return m.Machine().Plan()
	}
	plain, sums := plan(), plan(tinylm.WithAccumulation())
	require.Equal(t, 4*c.Parameters(), sums.GradSums)
	require.Less(t, sums.Arena, plain.Arena+sums.GradSums*5/4)
}

// TestNewPlan: NewPlan returns the plan of the machine, allocates no memory of the device, and says how much memory a
// run needs.
func TestNewPlan(t *testing.T) {
	const weights = 12*8 + 6*12
	for _, half := range []bool{false, true} {
		n, f, opts := newTiny(t), fakedevice.New(), []graph.Option(nil)
		if half {
			f, opts = fakedevice.NewHalf(), []graph.Option{graph.WithPrecision(graph.BF16), graph.WithGradSums()}
		}
		opts = append(opts, graph.WithBackend(f))
		got := testutil.Must(graph.NewPlan(n.graph, opts...))(t)
		require.Zero(t, f.MemoryInUse)
		m := testutil.Must(graph.NewMachine(n.graph, opts...))(t)
		require.Equal(t, m.Plan().String(), got.String())
		require.NoError(t, m.RunAll())
		require.Equal(t, f.MemoryInUse, got.Memory())
		require.Equal(t, 4*(weights+5*8+5+1), got.Inputs, "weights, x, targets, the seed of the gradient")
		if half {
			require.Equal(t, 2*(weights+5*8), got.HalfCopies, "of x too")
			require.Equal(t, 4*weights, got.GradSums)
		}
		require.NoError(t, m.Close())
		require.Zero(t, f.MemoryInUse)
	}
	n := newTiny(t)
	require.Equal(t, newMachine(t, n.graph).Plan().String(), testutil.Must(graph.NewPlan(n.graph))(t).String(), "cpu")
	require.ErrorContains(t, testutil.Err(graph.NewPlan(nil)), "nil graph")
	require.ErrorContains(t, testutil.Err(graph.NewPlan(G.NewGraph(), nil)), "nil option")
	require.ErrorContains(t, testutil.Err(graph.NewPlan(newTiny(t).graph, graph.WithPrecision(graph.FP16))),
		"precision fp16")
}

// TestRecomputeSameBits: with activations computed again, gradients, losses and weights have the same bits over several
// steps, also where free memory is filled with NaN after each step.
func TestRecomputeSameBits(t *testing.T) {
	mlp, dense, mixed, packed := modelConfig(), modelConfig(), modelConfig(), []tinylm.ModelOption{tinylm.WithDocuments(2 * 2)}
	mlp.Phi, mlp.PhiHidden, dense.Attention = nn.PhiMLP, 12, tinylm.Dense
	mixed.Attention = "window,nsa"
	capture, half := graph.WithCapture(), graph.WithPrecision(graph.BF16)
	for name, c := range map[string]tinylm.Config{"nsa": modelConfig(), "mlp": mlp, "dense": dense, "mixed": mixed} {
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

// TestRecomputePlan: the steps of all layers but the last run twice, except those whose results are boundaries or
// integers. No memory is read after it is freed, and a deep model needs much less memory.
func TestRecomputePlan(t *testing.T) {
	c := modelConfig()
	c.Layers = 12
	for attention, count := range map[tinylm.Attention]int{tinylm.NSA: 13, tinylm.Dense: 6} { // steps of a layer
		c.Attention = attention
		plan := func(opts ...tinylm.ModelOption) graph.Plan {
			opts = append(opts, tinylm.WithGradients(), tinylm.WithoutLogits(),
				tinylm.WithMachine(graph.WithPolicy(graph.Policy{})))
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
		require.Equal(t, c.Layers-1, ran["linear with add"],
			"that of the attention, since that of the MLP makes the boundary")
		require.Equal(t, 1, ran["embedding"])
	}
}

// TestRecomputeKeeps: results of Gorgonia's ops are kept, because these may be random. Values that nodes show after a
// run are kept, too.
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
	require.Equal(t, []string{"silu", "linear", "linear with silu"}, again,
		"the last one for what SiLU is of, not for what is shown")
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
