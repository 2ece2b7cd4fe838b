package graph_test

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

const width = 8 // of a randomNet

// randomNet is a small random network of ops of this module, an NSA layer among them, and of Gorgonia. The seed
// determines the network and what each token is.
type randomNet struct {
	seed    uint64
	graph   *G.ExprGraph
	weights G.Nodes
	ids     []int32
	inner   G.Nodes
	logits  *G.Node // [1,S,width]
	targets []int32
	loss    *G.Node
	grads   G.Nodes
	reads   []*G.Value
}

// newRandomNet returns a network of one row that holds documents of these lengths.
func newRandomNet(t testing.TB, seed uint64, documents ...int) *randomNet {
	r := rand.New(rand.NewPCG(seed, 1))
	n := &randomNet{seed: seed, graph: G.NewGraph()}
	weight := func(name string, shape ...int) *G.Node {
		w := single(n.graph, name, func(int) float64 { return r.NormFloat64() / 2 }, shape...)
		n.weights = append(n.weights, w)
		return w
	}
	table, gain := weight("table", 6, width), weight("gain", width)
	w := G.Nodes{weight("w0", width, width), weight("w1", width, width), weight("w2", width, width)}
	ends := []int32{0}
	for _, length := range documents {
		ends = append(ends, ends[len(ends)-1]+int32(length))
	}
	tokens := int(ends[len(documents)])
	n.ids, n.targets = make([]int32, tokens), make([]int32, tokens)
	n.setTokens(0)
	for i := range n.targets {
		n.targets[i] = rand.New(rand.NewPCG(seed, uint64(i))).Int32N(7) - 1
	}
	pool := G.Nodes{G.Must(ops.Embedding(table, fixed(table, "ids", n.ids, 1, tokens)))}
	if seed%3 == 0 {
		pool = append(pool, single(n.graph, "x", func(i int) float64 { return math.Sin(float64(i)) }, 1, tokens, width))
	}
	pick := func() *G.Node { return pool[len(pool)-1-r.IntN(min(len(pool), 4))] }
	for range 4 + r.IntN(14) {
		var y *G.Node
		a, b := pick(), pick()
		switch k := r.IntN(8); {
		case k < 2:
			y = G.Must(ops.Linear(a, w[r.IntN(3)]))
		case k == 3:
			y = G.Must(ops.RMSNorm(a, gain, 1e-5))
		case k < 6:
			y = G.Must([]func(*G.Node) (*G.Node, error){2: ops.SiLU, 4: ops.Softmax, 5: G.Tanh}[k](a))
		case a == b:
			continue
		case k == 6:
			y = G.Must(ops.Add(a, b))
		default:
			y = G.Must(G.HadamardProd(a, b))
		}
		pool = append(pool, y)
		if r.IntN(5) == 0 {
			n.reads = append(n.reads, new(G.Value))
			G.Read(y, n.reads[len(n.reads)-1])
		}
	}
	n.inner = pool[1:]
	y := n.attention(t, pool[len(pool)-1], w[2], weight("gates", 4, width), ends)
	y = G.Must(ops.Linear(G.Must(ops.RMSNorm(G.Must(ops.Linear(y, w[1])), gain, 1e-5)), w[0]))
	n.logits = G.Must(ops.Add(G.Must(ops.Linear(y, w[1])), G.Must(ops.Linear(pool[0], w[0]))))
	n.loss = G.Must(ops.CrossEntropy(n.logits, fixed(table, "targets", n.targets, 1, tokens)))
	n.grads = testutil.Must(graph.Grad(n.loss, n.weights...))(t)
	return n
}

// attention is a layer of NSA or two gated windows.
func (n *randomNet) attention(t testing.TB, x, w, gates *G.Node, ends []int32) *G.Node {
	var cuSeqlens, documents *G.Node
	if len(ends) > 2 {
		cuSeqlens = fixed(x, "cu_seqlens", ends, len(ends))
		documents = G.Must(ops.DocumentTable(cuSeqlens, 1, len(n.ids), ops.Params{}))
	}
	q, packed := G.Must(ops.Linear(x, w, ops.WithHeads(2))), ops.WithDocuments(documents)
	gate := G.Must(ops.Sigmoid(G.Must(ops.Linear(x, gates, ops.WithHeads(2)))))
	y := G.Must(ops.GatedSum(gate, G.Must(ops.SlidingWindow(q, q, q, 2, packed)),
		G.Must(ops.SlidingWindow(q, q, q, 4, packed))))
	if n.seed%2 == 0 {
		return y
	}
	layer := testutil.Must(nn.NewNSA(n.graph, "nsa.", nn.NSAConfig{Dim: width, Heads: 2, KVHeads: 1, KeyDim: 4,
		ValueDim: 4, GateHidden: 4,
		Params: ops.Params{BlockLen: 4, Stride: 2, SelectBlock: 4, TopN: 3, Window: 4}},
		nn.Random(tensor.Float32, n.seed)))(t)
	n.weights = append(n.weights, layer.Learnables()...)
	return testutil.Must(layer.Apply(G.Must(ops.Linear(y, w)), nn.WithCuSeqlens(cuSeqlens)))(t)
}

// setTokens sets the tokens of a step.
func (n *randomNet) setTokens(step int) {
	for i := range n.ids {
		n.ids[i] = (rand.New(rand.NewPCG(n.seed, uint64(1000+i))).Int32N(6) + int32(step*(i+1))) % 6
	}
}

// boundaries returns some of the inner nodes that WithRecompute accepts.
func (n *randomNet) boundaries(seed uint64) (list G.Nodes) {
	r := rand.New(rand.NewPCG(seed, 5))
	for _, v := range n.inner {
		if v.Op() != nil && r.IntN(3) == 0 && testutil.Err(graph.NewPlan(n.graph, graph.WithRecompute(v))) == nil {
			list = append(list, v)
		}
	}
	return list
}

// configuration is one way to train a random net. Two of them give the same bits if they agree in half and in the steps
// that are fused.
type configuration struct {
	Half               bool   // bfloat16
	Fusion             string // the only rule; "" for all of them
	Device             bool   // a device with memory of its own
	Workers, Recompute int    // of a CPU; seed of boundaries, 0 for none

	Keep, Capture, Together, Resume, Sums, Watch, Poison bool
}

// random sets all that must not change the bits.
func (c configuration) random(r *rand.Rand) configuration {
	yes := func() bool { return r.IntN(2) == 0 }
	c.Device, c.Workers = c.Half || yes(), 1+r.IntN(3)
	if yes() {
		c.Recompute = 1 + r.IntN(100)
	}
	c.Keep, c.Capture, c.Together, c.Resume, c.Sums, c.Poison = yes(), yes(), yes(), yes(), yes(), yes() && !c.Device
	c.Watch = c.Fusion == graph.UnfusedAll && yes()
	return c
}

func (c configuration) options(n *randomNet) []graph.Option {
	opts := []graph.Option{graph.WithKeep(n.loss, n.logits)}
	for _, o := range []struct {
		set    bool
		option graph.Option
	}{
		{c.Half, graph.WithPrecision(graph.BF16)}, {c.Fusion == graph.UnfusedAll, unfused(graph.UnfusedAll)},
		{c.Fusion != graph.UnfusedAll && c.Fusion != "", only(c.Fusion)}, {c.Keep, graph.WithKeep(n.inner...)},
		{c.Capture, graph.WithCapture()},
		{c.Sums, graph.WithGradSums()}, {c.Watch, graph.WithNaNWatch()}, {c.Watch, graph.WithInfWatch()},
	} {
		if o.set {
			opts = append(opts, o.option)
		}
	}
	if b := n.boundaries(uint64(c.Recompute)); c.Recompute > 0 && b != nil {
		opts = append(opts, graph.WithRecompute(b...))
	}
	return opts
}

// backend returns a device, with half precision, or the CPU.
func (c configuration) backend() graph.Backend {
	if c.Device {
		return fakedevice.NewHalf()
	}
	return graph.NewCPU(c.Workers)
}

// train takes four steps and returns the bits of everything that a user can see, and the plan.
func (c configuration) train(t *testing.T, build func() *randomNet) (all []float64, plan graph.Plan) {
	n := build()
	start := func() *trainer {
		x := newTrainer(t, c.backend(), c.Together, n.weights, c.options(n)...)
		if c.Poison {
			x.PoisonFreed()
		}
		return x
	}
	x := start()
	plan = x.Plan()
	look := func(v G.Value) { all = append(all, numbers(t, v)...) }
	for i := range 4 {
		if c.Resume && i == 2 {
			state := testutil.Must(x.solver.State())(t)
			require.NoError(t, x.moved.Download())
			x.close(t)
			old := n
			n = build()
			for j, w := range n.weights {
				require.NoError(t, G.Let(w, old.weights[j].Value()))
			}
			x = start()
			require.NoError(t, x.solver.SetState(state))
		}
		n.setTokens(i)
		x.step(t)
		if c.Sums {
			require.NoError(t, x.ZeroGrads())
		}
		look(n.loss.Value())
		look(n.logits.Value())
		for _, d := range n.grads {
			look(d.Value())
		}
		for _, v := range n.reads {
			look(*v)
		}
	}
	for _, w := range n.weights {
		look(w.Value())
	}
	look(G.NewF64(testutil.Must(x.solver.Norm())(t)))
	x.close(t)
	return all, plan
}

// TestRandomNetsTrainAlike trains random networks under random configurations. With the same precision and the same
// fusions, which kept values may prevent, the bits do not depend on the backend, the workers, kept values, recordings,
// steps in the run, recomputed activations, sums of gradients, watches, what is in free memory, or a stop after two
// steps. Fusions and half precision change little. Every other network reads packed documents; nn.TestNSADocuments
// compares these with documents alone.
func TestRandomNetsTrainAlike(t *testing.T) {
	rules := append([]string{""}, slices.DeleteFunc(graph.Fusions(), func(r string) bool {
		// these rules are for plans without derivatives
		return slices.Contains([]string{"linear-activation", "norm-linears", "decode-gates"}, r)
	})...)
	seen, recomputed := map[string]int{}, 0
	for seed := range uint64(testutil.Tries(t, 10, 100)) {
		r := rand.New(rand.NewPCG(seed, 9))
		build := func() *randomNet { return newRandomNet(t, seed, [][]int{{9}, {4, 1, 8}}[seed/2%2]...) }
		plain := configuration{Fusion: graph.UnfusedAll, Workers: 1, Keep: true}
		unfused, _ := plain.train(t, build)
		for _, half := range []bool{false, true} {
			for _, fusion := range []string{graph.UnfusedAll, rules[int(seed)%len(rules)]} {
				group := configuration{Half: half, Fusion: fusion, Device: half, Workers: 1}
				want := unfused
				if half || fusion != graph.UnfusedAll {
					want, _ = group.train(t, build)
					compared, most := len(want), 1e-6
					if half { // a part of the first step: some networks amplify what is rounded, and AdamW small gradients
						compared, most = len(want)/8, 0.25
					}
					require.LessOrEqual(t, distance(want[:compared], unfused[:compared]), most, "seed %d, %+v", seed, group)
				}
				for range testutil.Tries(t, 1, 3) {
					c := group.random(r)
					got, plan := c.train(t, build)
					if half && c.Keep { // a value that is kept is rounded, and one that a fusion leaves out is not
						others := c
						others.Keep = false
						kept, keptPlan := got, plan
						if got, plan = others.train(t, build); !maps.Equal(fused(plan), fused(keptPlan)) {
							require.LessOrEqual(t, distance(kept[:len(kept)/8], unfused[:len(kept)/8]), 0.25, "seed %d, %+v", seed, c)
						} else {
							require.True(t, slices.Equal(got, kept), "seed %d, %+v", seed, c)
						}
					}
					require.True(t, slices.Equal(want, got), "seed %d, %+v", seed, c)
					for rule, count := range fused(plan) {
						seen[rule] += count
					}
					for _, s := range plan.Steps {
						if s.Recomputed {
							recomputed++
						}
					}
				}
			}
		}
	}
	require.GreaterOrEqual(t, len(seen), testutil.Tries(t, len(rules)-3, len(rules)-1), "%v", seen)
	require.Greater(t, recomputed, 10)
}
