package graph_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// newBlock is a block of a transformer with attention of two branches, x + f(norm(x)), then the same with an MLP, and
// the gradients of all inputs. Each rule of the fuse pass has a place in it.
func newBlock(t testing.TB) *network {
	const dim = 8
	n := &network{graph: G.NewGraph()}
	linear := func(x *G.Node, name string, out int, opts ...ops.LinearOption) *G.Node {
		return G.Must(ops.Linear(x, n.input(name, out, dim), opts...))
	}
	x := n.input("x", 2, 5, dim)
	norm := G.Must(ops.RMSNorm(x, n.input("gain", dim), 1e-5))
	gate := G.Must(ops.SiLU(linear(norm, "gate", dim, ops.WithBias(n.input("bias", dim)))))
	start := G.NewVector(n.graph, tensor.Int32, G.WithShape(2), G.WithName("start"),
		G.WithValue(tensor.New(tensor.WithBacking([]int32{3, 0}))))
	a := G.Must(ops.RoPE(linear(norm, "a", dim, ops.WithHeads(1)), 100, 0, ops.WithStart(start)))
	b := linear(norm, "b", dim, ops.WithHeads(1))
	near, far := G.Must(ops.SlidingWindow(a, b, b, 2)), G.Must(ops.SlidingWindow(a, b, b, 4))
	inner := G.Must(ops.Add(a, G.Must(spec.Apply(pointwise.Add{}, b)),
		G.Must(ops.GatedSum(G.Must(ops.Sigmoid(n.input("gates", 2, 5, 1, 2))), near, far))))
	inner = G.Must(ops.Add(linear(inner, "c", dim), gate, norm))
	z := G.Must(ops.Add(x, linear(inner, "d", dim)))
	hidden := G.Must(ops.SiLU(linear(G.Must(ops.RMSNorm(z, n.input("gain 2", dim), 1e-5)), "up", dim)))
	n.cost = G.Must(spec.Apply(squares{}, G.Must(ops.Add(z, linear(hidden, "down", dim)))))
	n.let(t, 1)
	return n.grad(t)
}

func unfused(rules ...string) graph.Option { return graph.WithPolicy(graph.Policy{Unfused: rules}) }

// only returns the policy that switches all rules off but one.
func only(rule string) graph.Option {
	return unfused(slices.DeleteFunc(graph.Fusions(), func(r string) bool { return r == rule })...)
}

// fused counts the steps that the rules have made, and the copies that were removed.
func fused(p graph.Plan) map[string]int {
	counts := map[string]int{}
	for _, s := range p.Steps {
		if s.Rule != "" {
			counts[s.Rule]++
		}
	}
	if len(p.Copies) > 0 {
		counts["copies"] = len(p.Copies)
	}
	return counts
}

// TestFusions: each rule finds its places in a block. The results have the bits of the plan without the rule, or differ
// by the roundings of a sum.
func TestFusions(t *testing.T) {
	n := newBlock(t)
	plain := newMachine(t, n.graph, unfused(graph.UnfusedAll))
	want := n.results(t, plain)
	require.Empty(t, fused(plain.Plan()))
	places := map[string]int{
		"copies": 7, "linears": 1, "linears-grad": 1, "linear-add": 2, "norm-grad-add": 2, "linear-silu": 2,
		"silu-grad": 1, "gate-sigmoid": 2,
		"deltas": 3, "linear-cast": 0, // see TestLinearCast
		"linear-activation": 0, "norm-linears": 0, // see TestFusionsWithoutDerivatives
		"decode-gates": 0, // see TestDecodeGates
	}
	require.Len(t, graph.Fusions(), len(places))
	for _, rule := range append(graph.Fusions(), "") {
		tolerance, expected, rules := 0.0, map[string]int{rule: places[rule]}, only(rule)
		if rule == "" {
			expected, rules = maps.Clone(places), unfused()
			// the other SiLUs are in linears, the other sigmoids in the gated sum with deltas
			expected["linear-silu"], expected["gate-sigmoid"] = 1, 1
		}
		if expected["linears-grad"] > 0 {
			tolerance = 1e-14
		}
		maps.DeleteFunc(expected, func(_ string, n int) bool { return n == 0 })
		for _, b := range []graph.Backend{graph.NewCPU(1), fakedevice.New()} {
			m := newMachine(t, n.graph, rules, graph.WithBackend(b), graph.WithCapture())
			p := m.Plan()
			require.Equal(t, expected, fused(p))
			replaced := 0
			for _, s := range p.Steps {
				replaced += max(0, len(s.Replaces)-1)
				if s.Rule != "" {
					require.Contains(t, p.String(), fmt.Sprintf("%s: nodes %d", s.Rule, s.Replaces[0].ID()))
				}
			}
			require.Equal(t, len(plain.Plan().Steps), len(p.Steps)+replaced+len(p.Copies))
			if p.Device.Host {
				m.PoisonFreed()
			}
			for run := range 3 {
				for i, got := range n.results(t, m) {
					testutil.Within(t, fmt.Sprintf("rule %q, run %d, result %d", rule, run, i), got, want[i], tolerance)
				}
			}
		}
	}
}

// TestFusionsKeep: no rule removes a kept value.
func TestFusionsKeep(t *testing.T) {
	n := newBlock(t)
	all := slices.DeleteFunc(slices.Clone(n.graph.AllNodes()), func(n *G.Node) bool { return n.Op() == nil })
	plain := run(t, n.graph, unfused(graph.UnfusedAll), graph.WithKeep(all...))
	want := map[*G.Node][]float64{}
	for _, node := range all {
		want[node] = numbers(t, node.Value())
	}
	every := newMachine(t, n.graph, graph.WithKeep(all...))
	require.Equal(t, map[string]int{"linears": 1, "linears-grad": 1, "linear-silu": 1, "deltas": 3}, fused(every.Plan()))
	for _, s := range plain.Plan().Steps {
		one := run(t, n.graph, graph.WithKeep(s.Node))
		counts := fused(one.Plan())
		switch s.Op {
		case "gradient of add":
			require.Equal(t, 6, counts["copies"])
		case "gradient of rms norm":
			require.Equal(t, 1, counts["norm-grad-add"])
		}
		testutil.Within(t, s.Op, numbers(t, s.Node.Value()), want[s.Node], 1e-14)
	}
	require.NoError(t, every.RunAll())
	for _, node := range all {
		require.Equal(t, want[node], numbers(t, node.Value()))
	}
}

// TestCopiesAreNoSteps: copies have no step, except for kept copies and for copies of inputs or of results of
// Gorgonia's ops. Those have memory of their own.
func TestCopiesAreNoSteps(t *testing.T) {
	x := vector(G.NewGraph(), "x", 1, 2, 3)
	ofInput := G.Must(ops.Add(x))
	twice := G.Must(spec.Apply(scaledSum{1}, ofInput, ofInput))
	a, b := G.Must(ops.Add(twice)), G.Must(spec.Apply(pointwise.AddGrad{Sum: 1}, twice))
	ofCopy := G.Must(spec.Apply(pointwise.AddGrad{Sum: 2}, b))
	ofView := G.Must(ops.Add(G.Must(G.Reshape(twice, tensor.Shape{3})))) // some of Gorgonia's ops are wrong for views
	sum := G.Must(spec.Apply(scaledSum{10}, a, G.Must(spec.Apply(scaledSum{0.5}, ofCopy,
		G.Must(spec.Apply(scaledSum{0.5}, ofView))))))
	for i, opts := range [][]graph.Option{nil, {graph.WithBackend(fakedevice.New())}, {graph.WithKeep(b, twice)}} {
		m := run(t, x.Graph(), opts...)
		require.Len(t, m.Plan().Steps, 7+i/2)
		require.NotContains(t, m.Plan().Copies, ofView)
		require.Equal(t, []float64{22, 44, 66}, numbers(t, sum.Value()))
		if i == 2 {
			require.Equal(t, []float64{2, 4, 6}, numbers(t, b.Value()))
			require.NotEqual(t, twice.Value().Uintptr(), b.Value().Uintptr())
		}
	}
}

// newPickyFake returns a fake that offers two implementations for one Spec. The first one refuses, the second one
// accepts.
func newPickyFake(about string) *fakedevice.Backend {
	f := fakedevice.New()
	f.Offered = func(s graph.Call, list []graph.Implementation) []graph.Implementation {
		if s.Spec.Name() == about {
			list = append([]graph.Implementation{f.Implementation("picky")}, list...)
		}
		return list
	}
	return f
}

// TestFusionsAndBackend: a rule applies only if the backend has an implementation; under a strict policy this must be
// the first one.
func TestFusionsAndBackend(t *testing.T) {
	n := newBlock(t)
	for rule, spec := range map[string]string{
		"linears": "linears", "linears-grad": "gradient of linears", "linear-add": "linear with add",
		"linear-silu":   "linear with silu",
		"norm-grad-add": "gradient of rms norm with add", "gate-sigmoid": "gradient of sigmoid gated sum",
		"deltas": "gradient of gated sum with deltas",
	} {
		f := fakedevice.New()
		f.Missing = spec
		none := newMachine(t, n.graph, only(rule), graph.WithBackend(f)).Plan()
		require.Zero(t, fused(none)[rule], rule)
		require.Contains(t, none.String(), "times: "+rule+": no implementation\n")
		picky := graph.WithBackend(newPickyFake(spec))
		p := newMachine(t, n.graph, picky, only(rule)).Plan()
		require.NotZero(t, fused(p)[rule], rule)
		require.Contains(t, p.String(), "picky: unsupported shape: always")
	}
	// A strict policy would refuse a second implementation, so that nothing is fused. The original steps have only one
	// implementation.
	n = &network{graph: G.NewGraph()}
	x := n.input("x", 1, 4, 8)
	G.Must(ops.Linear(x, n.input("w0", 3, 8)))
	G.Must(ops.Linear(x, n.input("w1", 3, 8)))
	p := newMachine(t, n.graph, graph.WithBackend(newPickyFake("linears")),
		graph.WithPolicy(graph.Policy{Strict: true})).Plan()
	require.Empty(t, fused(p))
	require.Equal(t, map[string]int{"linears: picky: unsupported shape: always": 1}, p.Unfused)
	require.Len(t, p.Steps, 2)
}

// TestJoinedWeightsAreContiguous: on a device the casts of the weights of linears are contiguous, and so are their
// gradients. The backend is told so. They are not contiguous if the size of one before the last is not a multiple of
// the device's alignment.
func TestJoinedWeightsAreContiguous(t *testing.T) {
	for _, outs := range [][]int{{5, 16, 32}, {16, 5, 32}} {
		g := G.NewGraph()
		number := func(i int) float64 { return float64(i % 3) }
		x, sums := single(g, "x", number, 2, 3, 8), G.Nodes{}
		for i, out := range outs {
			sums = append(sums, G.Must(G.Sum(G.Must(ops.Linear(x, single(g, fmt.Sprint("w", i), number, out, 8))))))
		}
		testutil.Must(graph.Grad(G.Must(G.ReduceAdd(sums)), g.Inputs()...))(t)
		f, told := fakedevice.NewHalf(), map[string][]bool{}
		f.Offered = func(s graph.Call, list []graph.Implementation) []graph.Implementation {
			if s.Spec != nil {
				told[s.Spec.Name()] = s.Adjacent
			}
			return list
		}
		run, none := outs[0] == 5, []bool{false, false, false}
		steps := newMachine(t, g, graph.WithBackend(f), graph.WithPrecision(graph.BF16)).Plan().Steps
		i := slices.IndexFunc(steps, func(s graph.PlanStep) bool { return s.Op == "gradient of linears" })
		for j, dw := range steps[i].Outputs[1:] {
			before := steps[i].Outputs[j]
			require.Equal(t, j > 0 && run, dw.Offset == before.Offset+before.Bytes())
		}
		joined := []bool{false, run, run}
		require.Equal(t, slices.Concat([]bool{false}, joined, none), told["linears"], "x, ws, ys")
		require.Equal(t, slices.Concat([]bool{false}, none, joined, []bool{false}, joined), told["gradient of linears"],
			"x, dys, ws, dx, dws")
	}
}

// TestFusionsOfOneType: steps with results of different types are not fused.
func TestFusionsOfOneType(t *testing.T) {
	g := G.NewGraph()
	x := single(g, "x", func(int) float64 { return 1 }, 1, 4, 8)
	for i, out := range []int{4, 3, 4, 3, 4} {
		// in half precision
		G.Must(ops.Softmax(G.Must(ops.Linear(x, single(g, fmt.Sprint("w", i), func(int) float64 { return 1 }, out, 8)))))
	}
	f := fakedevice.NewHalf() // it stores the results of linear layers with three outputs in float32
	f.Stored = func(s graph.Call, _, out []tensor.Dtype) {
		if d := s.Out[0].Shape; s.Spec != nil && s.Spec.Name() == "linear" && d[len(d)-1] == 3 {
			out[0] = tensor.Float32
		}
	}
	var layers []int
	for _, s := range newMachine(t, g, graph.WithBackend(f), graph.WithPrecision(graph.BF16)).Plan().Steps {
		if s.Rule == "linears" {
			layers = append(layers, len(s.Outputs))
			for _, o := range s.Outputs {
				require.Equal(t, s.Outputs[0].Operand, o.Operand)
			}
		}
	}
	require.Equal(t, []int{3, 2}, layers)
}

// TestFusionsWithoutDerivatives: linear layers fuse the ops around them. The bits are the same, and no kept value is
// removed.
func TestFusionsWithoutDerivatives(t *testing.T) {
	const dim = 8
	n := &network{graph: G.NewGraph()}
	linear := func(x *G.Node, name string, opts ...ops.LinearOption) *G.Node {
		return G.Must(ops.Linear(x, n.input(name, dim, dim), opts...))
	}
	norm := func(x *G.Node, name string) *G.Node { return G.Must(ops.RMSNorm(x, n.input(name, dim), 1e-5)) }
	x := n.input("x", 2, 5, dim)
	normed := norm(x, "gain")
	a := G.Must(ops.RoPE(linear(normed, "a", ops.WithHeads(1)), 100, 0))
	hidden := G.Must(ops.SiLU(linear(normed, "gate 1", ops.WithBias(n.input("bias", dim)))))
	gates := G.Must(ops.Sigmoid(linear(hidden, "gate 2", ops.WithHeads(1))))
	z := G.Must(ops.Add(x, linear(G.Must(ops.Add(a, gates)), "o")))
	up := G.Must(ops.SiLU(linear(norm(z, "gain 2"), "up")))
	z = G.Must(ops.Add(z, linear(up, "down")))
	wide := norm(G.Must(ops.Add(z, z)), "gain 3") // read by more than linear layers
	y := G.Must(ops.Add(wide, linear(wide, "head"), G.Must(ops.Sigmoid(linear(norm(z, "gain 4"), "last")))))
	twice := linear(x, "twice")
	y = G.Must(ops.Add(y, G.Must(ops.SiLU(twice)), twice)) // read by more than the SiLU
	n.let(t, 1)
	run(t, n.graph, graph.WithKeep(y), unfused(graph.UnfusedAll))
	want := numbers(t, y.Value())
	for _, c := range []struct {
		opts   []graph.Option
		places map[string]int // by the last rule of a step
	}{
		{nil, map[string]int{"linear-activation": 1, "norm-linears": 3, "linear-add": 2, "linear-silu": 1}},
		{[]graph.Option{only("linear-activation")}, map[string]int{"linear-activation": 4}},
		{[]graph.Option{only("norm-linears")}, map[string]int{"norm-linears": 2}},
		{[]graph.Option{graph.WithKeep(normed, up, gates)}, map[string]int{"linear-activation": 2, "norm-linears": 2,
			"linear-add": 2, "linear-silu": 1}},
	} {
		for _, b := range []graph.Backend{graph.NewCPU(1), fakedevice.New()} {
			m := newMachine(t, n.graph, append(c.opts, graph.WithBackend(b), graph.WithKeep(y))...)
			require.NoError(t, m.RunAll())
			require.Equal(t, want, numbers(t, y.Value()))
			require.Equal(t, c.places, fused(m.Plan()))
		}
	}
}

// TestDecodeGates: a step of decoding makes its gates, with the bits of the separate ops. Nothing is fused if the
// result of one of these ops is kept.
func TestDecodeGates(t *testing.T) {
	c := decode.KVCache{Params: ops.Params{BlockLen: 4, Stride: 2, SelectBlock: 4, TopN: 3, Window: 4}, KVHeads: 1,
		KeyDim: 4, ValueDim: 2, Slots: 2, Pages: 2, PageLen: 8}
	const heads, hidden = 3, 5
	n := &network{graph: G.NewGraph()}
	in := G.Nodes{n.input("q", 2, 1, heads, c.KeyDim)}
	for _, name := range []string{"cmp", "sel", "win"} {
		in = append(in, n.input(name+" k", 2, 1, 1, c.KeyDim), n.input(name+" v", 2, 1, 1, c.ValueDim))
	}
	x, w, bias := n.input("hidden", 2, 1, hidden), n.input("w", 3*heads, hidden), n.input("bias", 3*heads)
	cache, rows := n.input("cache", c.Elements()), tensor.New(tensor.WithShape(2, 2),
		tensor.WithBacking([]int32{3, 1, 0, 0}))
	n.let(t, 1)
	places := G.NewTensor(n.graph, tensor.Int32, 2, G.WithShape(2, 2), G.WithName("rows"), G.WithValue(rows))
	logits := G.Must(ops.Linear(x, w, ops.WithBias(bias), ops.WithHeads(heads)))
	o := G.Must(spec.Apply(decode.Step{Cache: c, Base: 10}, append(in, G.Must(ops.Sigmoid(logits)), cache, places)...))
	var want []float64
	for i, opt := range []graph.Option{unfused(graph.UnfusedAll), unfused(), only("decode-gates"),
		graph.WithKeep(logits)} {
		m := run(t, n.graph, opt, graph.WithKeep(o))
		require.Equal(t, []int{0, 1, 1, 0}[i], fused(m.Plan())["decode-gates"])
		if i == 0 {
			want = numbers(t, o.Value())
		}
		require.Equal(t, want, numbers(t, o.Value()))
	}
}

// TestLinearCast: a result that only a cast to float32 reads is not rounded to half precision.
func TestLinearCast(t *testing.T) {
	g := G.NewGraph()
	x := single(g, "x", func(int) float64 { return 1 }, 1, 1, 2)
	y := G.Must(ops.Linear(x, single(g, "w", func(i int) float64 { return []float64{1, 1. / 512}[i] }, 1, 2)))
	negated := G.Must(G.Neg(y)) // an op of Gorgonia's
	for i, rules := range []graph.Option{unfused(), unfused("linear-cast")} {
		m := run(t, g, graph.WithBackend(fakedevice.NewHalf()), graph.WithPrecision(graph.BF16), rules)
		require.Equal(t, 1-i, fused(m.Plan())["linear-cast"])
		require.Equal(t, []float64{-1 - 1./512, -1}[i:i+1], numbers(t, negated.Value()))
	}
}

// TestFusionsKeepBits: graphs that a rule must leave as they are, or fuse in part, have the bits of the separate ops.
func TestFusionsKeepBits(t *testing.T) {
	for name, c := range map[string]struct {
		build func(n *network) *G.Node
		want  map[string]int
	}{
		// A gated sum that applies the sigmoid itself reads gates that are a sigmoid already. Their gradient stays the same.
		"sigmoid twice": {func(n *network) *G.Node {
			gates, a, b := G.Must(ops.Sigmoid(n.input("x", 1, 2, 1, 2))), n.input("a", 1, 2, 1, 3), n.input("b", 1, 2, 1, 3)
			twice := G.Must(spec.Apply(pointwise.GatedSum{Sigmoid: true}, gates, a, b))
			return G.Must(ops.Add(G.Must(ops.GatedSum(gates, a, b)), twice))
		}, map[string]int{"copies": 1}},
		// If a sum reads a gradient twice, once as a copy, the gradient is two terms of the sum.
		"gradient read twice": {func(n *network) *G.Node {
			x := n.input("x", 1, 4, 8)
			x = G.Must(ops.RMSNorm(G.Must(ops.Add(x, x)), n.input("gain", 8), 1e-5))
			return G.Must(ops.Linear(G.Must(ops.Add(x, x)), n.input("w", 3, 8)))
		}, map[string]int{"copies": 2}},
		// A fused step would run before a step that it reads, since the weights of one linear layer depend on another one.
		"order": {func(n *network) *G.Node {
			x := n.input("x", 1, 4, 2)
			first := G.Must(ops.Linear(x, n.input("w", 2, 2)))
			late := G.Must(ops.Linear(G.Must(ops.Add(x, x)), G.Must(spec.Apply(linear.WeightGrad{Out: 2, In: 2}, x, first))))
			return G.Must(ops.Linear(x, G.Must(spec.Apply(linear.WeightGrad{Out: 2, In: 2}, late, x))))
		}, map[string]int{}},
	} {
		n := &network{graph: G.NewGraph()}
		y := c.build(n)
		n.cost = G.Must(spec.Apply(squares{}, y))
		n.let(t, 1)
		if name != "order" { // the steps in question are its only ones
			n.grad(t)
		}
		results := func(opts ...graph.Option) (all [][]float64, counts map[string]int) {
			m := run(t, n.graph, append(opts, graph.WithKeep(y))...)
			all = append(all, numbers(t, n.cost.Value()), numbers(t, y.Value()))
			for _, in := range n.in {
				if in.Deriv() != nil {
					all = append(all, gradient(t, in))
				}
			}
			return all, fused(m.Plan())
		}
		want, _ := results(unfused(graph.UnfusedAll))
		got, counts := results()
		require.Equal(t, c.want, counts, name)
		require.Equal(t, want, got, name)
	}
}
