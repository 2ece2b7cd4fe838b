package ops_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
)

// Short names for the types of opcases.
type (
	array = opcases.Array
	dims  = opcases.Dims
)

func normal(name string, seed uint64, shape ...int) array {
	return opcases.Normal(name, seed, shape...)
}

// build builds the node of an op, as the tests see it, from the nodes of its inputs.
type build func(in []*G.Node) (*G.Node, error)

// vms are the machines that every op runs on.
var vms = map[string]func(*G.ExprGraph) (G.VM, error){
	"TapeMachine": func(g *G.ExprGraph) (G.VM, error) { return G.NewTapeMachine(g), nil },
	"Machine":     func(g *G.ExprGraph) (G.VM, error) { return graph.NewMachine(g) },
}

// result holds what a test graph computed: the output and, if weights were given, the gradients of sum(out*weights).
type result struct {
	out   []float64
	grads map[string][]float64
}

// runGraph builds the graph in type dt, runs it twice on the named machine and returns the second run's values. If
// weights is not nil, it has as many elements as the output, and runGraph computes the gradients of sum(out*weights)
// with respect to the inputs of floats.
func runGraph(t testing.TB, vm string, dt tensor.Dtype, b build, weights []float64, inputs ...array) result {
	t.Helper()
	g := G.NewGraph()
	var nodes, wrt G.Nodes
	for _, a := range inputs {
		n := a.Node(g, dt)
		nodes = append(nodes, n)
		if a.Ints == nil {
			wrt = append(wrt, n)
		}
	}
	out := testutil.Must(b(nodes))(t)
	var kept G.Value
	G.Read(out, &kept)
	if weights != nil {
		cost := out
		if !out.IsScalar() {
			r := array{Name: "weights of the test", Shape: out.Shape(), Floats: weights}.Node(g, dt)
			cost = G.Must(G.Sum(G.Must(G.HadamardProd(out, r))))
		}
		require.NoError(t, testutil.Err(G.Grad(cost, wrt...)))
	}
	m := testutil.Closing(vms[vm](g))(t)
	require.NoError(t, m.RunAll())
	m.Reset()
	require.NoError(t, m.RunAll())
	res := result{out: testutil.Floats(t, kept.Data()), grads: map[string][]float64{}}
	if weights != nil {
		for _, n := range wrt {
			res.grads[n.Name()] = testutil.Floats(t, testutil.Must(n.Grad())(t).Data())
		}
	}
	return res
}

// runPlan makes the calls of a case's plan. run runs a Spec and returns its outputs. runPlan returns the plan and all
// arrays. If given holds a dy, it replaces the plan's.
func runPlan(t testing.TB, c opcases.Case, given []array, run func(spec spec.Spec,
	in []array) []array) (*opcases.Plan, []array) {
	t.Helper()
	plan := testutil.Must(c.Plan())(t)
	arrays := make([]array, plan.Arrays)
	copy(arrays, plan.Inputs)
	copy(arrays[len(c.Inputs):len(plan.Inputs)], given)
	for _, call := range plan.Calls {
		var in []array
		for _, i := range call.In {
			in = append(in, arrays[i])
		}
		for i, a := range run(call.Spec, in) {
			arrays[call.Out[i]] = a
		}
	}
	return plan, arrays
}

// runCase runs a case without a VM. Every Spec runs on a team of the given number of workers, with poisoned work memory
// and poisoned outputs between guards. runCase returns the outputs of the op, the gradient of each input that has one,
// and dy.
func runCase(t testing.TB, c opcases.Case, dt tensor.Dtype, workers int, given ...array) (out, grads []array,
	dy array) {
	t.Helper()
	plan, arrays := runPlan(t, c, given, func(spec spec.Spec, in []array) []array {
		return runSpecWith(t, workers, spec, dt, in...)
	})
	for _, i := range plan.Out {
		out = append(out, arrays[i])
	}
	for _, i := range plan.Grads {
		if i >= 0 {
			grads = append(grads, arrays[i])
		}
	}
	if c.Gradients != nil {
		dy = arrays[len(c.Inputs)]
	}
	return out, grads, dy
}

// runAttention returns the results of the case of an attention op: o and lse, and dq, dk and dv for do.
func runAttention(t testing.TB, c opcases.Case, dt tensor.Dtype, do array) (forward, backward []array) {
	t.Helper()
	forward, backward, _ = runCase(t, c, dt, 0, do)
	return forward, backward
}

// bound is an op bound to memory of its own, to be run without a graph.
type bound struct {
	kernel  cpu.Kernel
	in, out []spec.Arg
	mem     *cpu.Buf
	results []func() array // for each output: checks its guards and that all of it was written, and returns it
}

// bindSpec binds spec to copies of the inputs, in type dt, and to guarded, poisoned outputs. In bf16 operands have the
// types in which a machine stores them, and outputs in bf16 have no guards.
func bindSpec(t testing.TB, s spec.Spec, dt tensor.Dtype, workers int, inputs ...array) *bound {
	t.Helper()
	var operands []spec.Operand
	b := new(bound)
	for _, a := range inputs {
		operands = append(operands, a.Operand(inferred(dt)))
	}
	outputs := testutil.Must(s.Infer(operands))(t)
	if dt == ops.BFloat16 {
		in, out := graph.NewCPU(1).Storage(graph.Call{Spec: s, In: operands, Out: outputs}, dt)
		operands, outputs = retyped(operands, in), retyped(outputs, out)
	}
	for i, a := range inputs {
		o, buf := operands[i], new(cpu.Buf)
		switch o.Dtype {
		case ops.BFloat16:
			half := make([]cpu.BFloat16, len(a.Floats))
			cpu.RoundBF16(half, testutil.Convert[float32](a.Floats))
			cpu.Hold(buf, half)
		case tensor.Int32:
			cpu.Hold(buf, slices.Clone(a.Ints))
		case tensor.Float32:
			cpu.Hold(buf, testutil.Convert[float32](a.Floats))
		case tensor.Float64:
			cpu.Hold(buf, slices.Clone(a.Floats))
		}
		b.in = append(b.in, spec.Arg{Operand: o, Buf: buf})
	}
	for i, o := range outputs {
		what := fmt.Sprintf("output %d of %s", i, s.Name())
		a := array{Name: fmt.Sprint("output ", i), Shape: o.Shape}
		switch o.Dtype {
		case ops.BFloat16:
			half := make([]cpu.BFloat16, o.Elements())
			b.out = append(b.out, spec.Arg{Operand: o, Buf: cpu.NewBuf(half)})
			b.results = append(b.results, func() array {
				wide := make([]float32, len(half))
				cpu.WidenBF16(wide, half)
				a.Floats = testutil.Convert[float64](wide)
				return a
			})
		case tensor.Float32:
			guard(t, b, o, what, func(x []float32) array { a.Floats = testutil.Convert[float64](x); return a })
		case tensor.Float64:
			guard(t, b, o, what, func(x []float64) array { a.Floats = slices.Clone(x); return a })
		case tensor.Int32:
			guard(t, b, o, what, func(x []int32) array { a.Ints = slices.Clone(x); return a })
		}
	}
	spec.BindBF16(&b.kernel, s, b.in, b.out)
	b.mem = cpu.NewBuf(cpu.AlignedBytes(b.kernel.WorkBytes(workers)))
	testutil.Poison(cpu.Slice[float32](b.mem)) // the poison is NaN in float64, too
	return b
}

// inferred is the type in which a graph has operands of dt: float32 for bf16.
func inferred(dt tensor.Dtype) tensor.Dtype {
	if dt == ops.BFloat16 {
		return tensor.Float32
	}
	return dt
}

func retyped(list []spec.Operand, types []tensor.Dtype) []spec.Operand {
	list = slices.Clone(list)
	for i := range list {
		list[i].Dtype = types[i]
	}
	return list
}

// guard adds an output in guarded memory. read converts it to the result.
func guard[T float32 | float64 | int32](t testing.TB, b *bound, o spec.Operand, what string, read func([]T) array) {
	x, check := testutil.Guarded[T](o.Elements())
	b.out = append(b.out, spec.Arg{Operand: o, Buf: cpu.NewBuf(x)})
	b.results = append(b.results, func() array {
		t.Helper()
		check(t, what)
		require.Equal(t, -1, testutil.Poisoned(x), what)
		return read(x)
	})
}

// runSpec runs spec once and returns all its outputs. It checks that every element was written, and nothing outside.
func runSpec(t testing.TB, spec spec.Spec, dt tensor.Dtype, inputs ...array) []array {
	t.Helper()
	return runSpecWith(t, 0, spec, dt, inputs...)
}

// runSpecWith is runSpec on a team of the given number of workers.
func runSpecWith(t testing.TB, workers int, spec spec.Spec, dt tensor.Dtype, inputs ...array) []array {
	t.Helper()
	team := cpu.NewTeam(workers)
	x := bindSpec(t, spec, dt, team.Workers(), inputs...)
	require.NoError(t, team.Run(&x.kernel, x.mem))
	return x.read()
}

func (b *bound) read() (out []array) {
	for _, result := range b.results {
		out = append(out, result())
	}
	return out
}

// requireSame compares arrays by their bits. It is much faster than require.Equal.
func requireSame(t testing.TB, want, got []array, what string) {
	t.Helper()
	require.Len(t, got, len(want), what)
	for i, w := range want {
		if !slices.Equal(w.Shape, got[i].Shape) || !slices.Equal(w.Floats, got[i].Floats) || !slices.Equal(w.Ints, got[i].Ints) {
			require.Equal(t, w, got[i], "%s: array %d", what, i)
		}
	}
}

// selectBlocks returns the blocks that queries select by compressed keys.
func selectBlocks(t testing.TB, c dims, p ops.Params, dt tensor.Dtype, q, kc, vc array) array {
	o := runSpec(t, attention.Compressed{BlockLen: p.BlockLen, Stride: p.Stride}, dt, q, kc, vc)
	return runSpec(t, attention.SelectBlocks{Params: p}, dt, q, kc, o[1])[0]
}

// BenchmarkOps runs each Spec of the large cases on all processors. It reports the operations of spec.FLOPs and the
// bytes of the operands, each read or written once. go run ./bench -suite ops measures the sizes of models.
func BenchmarkOps(b *testing.B) {
	for _, c := range opcases.All(opcases.Large) {
		runPlan(b, c, nil, func(spec spec.Spec, in []array) []array {
			b.Run(c.Name+"/"+spec.Name(), func(b *testing.B) { benchmark(b, spec, in...) })
			return runSpec(b, spec, tensor.Float32, in...)
		})
	}
}

func benchmark(b *testing.B, s spec.Spec, inputs ...array) {
	team := cpu.NewTeam(0)
	x := bindSpec(b, s, tensor.Float32, team.Workers(), inputs...)
	bytes, operands := 0, []spec.Operand{}
	for _, o := range append(x.in, x.out...) {
		bytes += o.Operand.Bytes()
		operands = append(operands, o.Operand)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := team.Run(&x.kernel, x.mem); err != nil {
			b.Fatal(err)
		}
	}
	perSecond := float64(b.N) / b.Elapsed().Seconds() / 1e9
	b.ReportMetric(spec.FLOPs(s, operands[:len(x.in)])*perSecond, "GFLOP/s")
	b.ReportMetric(float64(bytes)*perSecond, "GB/s")
}
