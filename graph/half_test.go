package graph_test

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// TestHalfPrecision: the machine stores activations in half precision and shows float32.
func TestHalfPrecision(t *testing.T) {
	train := func(b graph.Backend, p graph.Precision, opts ...graph.Option) []float64 {
		all, failures := newTiny(t).train(t, b, p, opts...)
		require.NoError(t, errors.Join(failures...))
		return all
	}
	want := train(graph.NewCPU(1), graph.F32)
	f := fakedevice.NewHalf()
	for _, opts := range [][]graph.Option{nil, {graph.WithCapture()}} {
		got := train(f, graph.BF16, opts...)
		require.InDeltaSlice(t, want, got, 0.02)
		require.NotEqual(t, want[:8], got[:8], "losses and norms")
		require.Equal(t, want, train(f, graph.F32, opts...))
		timed := append(opts, graph.WithPolicy(graph.Policy{Timing: true}), graph.WithLogger(slog.New(slog.DiscardHandler)))
		require.Equal(t, got, train(f, graph.BF16, timed...), "timed, where later runs leave casts of weights out")
	}
	require.Zero(t, f.Streams)
	require.Zero(t, f.MemoryInUse)

	if cpu.HasBF16() {
		got := train(graph.NewCPU(1), graph.BF16)
		require.InDeltaSlice(t, want, got, 0.02)
		require.NotEqual(t, want[:8], got[:8], "losses and norms")
		require.Equal(t, got, train(graph.NewCPU(3), graph.BF16), "another number of workers")
		require.Equal(t, want, train(graph.NewCPU(3), graph.F32))
	} else {
		require.ErrorContains(t, graph.BF16.Check(graph.NewCPU(1).Device()), "bf16: cpu computes in float32")
	}

	n := newTiny(t)
	require.ErrorContains(t, testutil.Err(graph.NewMachine(n.graph, graph.WithPrecision(graph.FP16))),
		"fp16: cpu computes in float32")
	require.ErrorContains(t, testutil.Err(graph.NewMachine(n.graph, graph.WithBackend(f), graph.WithPrecision(7))),
		"want f32, bf16 or fp16")
	for _, p := range []graph.Precision{graph.F32, graph.BF16, graph.FP16} {
		require.Equal(t, p, testutil.Must(graph.ParsePrecision(p.String()))(t))
	}
	require.ErrorContains(t, testutil.Err(graph.ParsePrecision("fp8")), `"fp8"`)
}

// TestHalfPrecisionWithoutKernel: if no implementation accepts an op in half precision, only this op runs in float32,
// with casts around it.
func TestHalfPrecisionWithoutKernel(t *testing.T) {
	n := newTiny(t)
	plan := func(b graph.Backend) (list []string) {
		m := run(t, n.graph, graph.WithBackend(b), graph.WithPrecision(graph.BF16), unfused(graph.UnfusedAll))
		for _, s := range m.Plan().Steps {
			list = append(list, fmt.Sprint(s.Op, s.Inputs, s.Outputs[0].Operand))
		}
		return list
	}
	f := fakedevice.NewHalf() // it has SiLU in float32 alone, though its Storage asks for half precision
	f.Offered = func(s graph.Call, list []graph.Implementation) []graph.Implementation {
		if s.Spec.Name() == "silu" && (spec.IsHalf(s.In[0].Dtype) || spec.IsHalf(s.Out[0].Dtype)) {
			return []graph.Implementation{f.Implementation("picky")}
		}
		return list
	}
	all, single := plan(fakedevice.NewHalf()), plan(f)
	require.Len(t, single, len(all), "the cast that was behind SiLU is before it")
	var other [2][]string
	for i := range all {
		if all[i] != single[i] {
			other[0], other[1] = append(other[0], all[i]), append(other[1], single[i])
		}
	}
	cast, half, float := "cast[bfloat16 (1, 5, 12)] float32 (1, 5, 12)",
		"silu[bfloat16 (1, 5, 12)] bfloat16 (1, 5, 12)", "silu[float32 (1, 5, 12)] float32 (1, 5, 12)"
	require.Equal(t, [2][]string{{half, cast}, {cast, float}}, other)
	text := newMachine(t, n.graph, graph.WithBackend(f), graph.WithPrecision(graph.BF16)).Plan().String()
	require.Contains(t, text, "picky: unsupported shape: always", "why it is not in half precision")
}

// inBF16 returns the options of machines of bf16: on a device and, if it can, on the CPU.
func inBF16() [][]graph.Option {
	list := [][]graph.Option{{graph.WithBackend(fakedevice.NewHalf()), graph.WithPrecision(graph.BF16)}}
	if cpu.HasBF16() {
		list = append(list, []graph.Option{graph.WithBackend(graph.NewCPU(2)), graph.WithPrecision(graph.BF16)})
	}
	return list
}

// tiny is a network of two layers on fixed data.
type tiny struct {
	graph                 *G.ExprGraph
	weights               G.Nodes
	targets, hidden, loss *G.Node
}

// single is an input of float32 with element(i) for each i.
func single(g *G.ExprGraph, name string, element func(i int) float64, shape ...int) *G.Node {
	v := tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(shape...))
	for i := range v.Float32s() {
		v.Float32s()[i] = float32(element(i))
	}
	return G.NodeFromAny(g, v, G.WithName(name))
}

func newTiny(t *testing.T) *tiny {
	n := &tiny{graph: G.NewGraph()}
	input := func(name string, shape ...int) *G.Node {
		return single(n.graph, name, func(i int) float64 { return math.Sin(float64(3*i+len(name))) / 2 }, shape...)
	}
	x, w1, w2 := input("x", 1, 5, 8), input("w1", 12, 8), input("weight2", 6, 12)
	n.weights, n.targets = G.Nodes{w1, w2}, fixed(x, "targets", []int32{0, 5, 2, -1, 3}, 1, 5)
	n.hidden = G.Must(ops.SiLU(G.Must(ops.Linear(x, w1))))
	doubled := G.Must(G.Add(n.hidden, n.hidden)) // an op of Gorgonia's, on the host
	n.loss = G.Must(ops.CrossEntropy(G.Must(ops.Linear(doubled, w2)), n.targets))
	testutil.Must(graph.Grad(n.loss, n.weights...))(t)
	return n
}

// TestConstantInputs: the half-precision copy of a constant input is made once and again after Refresh; that of any
// other input is made in each run.
func TestConstantInputs(t *testing.T) {
	g := G.NewGraph()
	x := single(g, "x", func(i int) float64 { return float64(i) }, 1, 4)
	w := single(g, "w", func(int) float64 { return 1 }, 1, 4)
	y := G.Must(ops.Linear(x, w))
	for _, opts := range append(inBF16(), append(inBF16()[0], graph.WithCapture())) {
		m := newMachine(t, g, append(opts, graph.WithConstantInputs(w))...)
		sums := func(xs, ws float32, want float64, why string) { // with these first elements of x and w
			x.Value().(*tensor.Dense).Float32s()[0], w.Value().(*tensor.Dense).Float32s()[0] = xs, ws
			require.NoError(t, m.RunAll())
			require.Equal(t, want, numbers(t, y.Value())[0], why)
		}
		for range 3 {
			sums(0, 1, 6, "")
		}
		sums(4, 2, 10, "x is read anew, w is not")
		m.Refresh()
		sums(4, 2, 14, "")
	}
}

// TestNaNWatchInHalfPrecision: the watch also checks results in half precision, and names gradients after their inputs.
func TestNaNWatchInHalfPrecision(t *testing.T) {
	for _, c := range []struct {
		x, w float64
		want string
	}{
		{1, 1, ""},
		{1, math.NaN(), "ops: cast: NaN or Inf found: element 0 of the result, near w, is NaN"},
		{1e30, -1e30, "ops: linear: NaN or Inf found: element 0 of the result, near x, is -Inf"},
		{3e38, 0, "ops: weight gradient of linear: NaN or Inf found: element 0 of the result, the gradient of w, is +Inf"},
	} {
		g := G.NewGraph()
		x := single(g, "x", func(int) float64 { return c.x }, 3, 1)
		w := single(g, "w", func(int) float64 { return c.w }, 1, 1)
		testutil.Must(graph.Grad(G.Must(G.Sum(G.Must(ops.Linear(x, w)))), w))(t)
		for _, opts := range inBF16() {
			requireError(t, c.want, newMachine(t, g, append(opts, graph.WithNaNWatch(), graph.WithInfWatch())...).RunAll())
		}
	}
}
