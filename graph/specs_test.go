package graph_test

import (
	"errors"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// TestMain: no test leaves a goroutine behind.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // the tests make many small graphs, and their heap is small
	goleak.VerifyTestMain(m)
}

// Specs of float64 for graphs under test.

// scaledSum is y = a*x0 + x1 + x2 + ..., all of one shape.
type scaledSum struct{ A float64 }

func (scaledSum) Name() string { return "scaled sum" }

func (scaledSum) Infer(in []spec.Operand) ([]spec.Operand, error) { return in[:1], nil }

func (s scaledSum) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	work := cpu.Work[float64](k, out[0].Elements())
	k.Phase(1, func(int, *cpu.Worker) {
		y, w := cpu.Slice[float64](out[0].Buf), cpu.Slice[float64](work)
		for i, x := range cpu.Slice[float64](in[0].Buf) {
			w[i] = s.A * x
		}
		copy(y, w)
		for _, a := range in[1:] {
			for i, x := range cpu.Slice[float64](a.Buf) {
				y[i] += x
			}
		}
	})
}

func (s scaledSum) Grad(_ []bool, in G.Nodes, _, grad *G.Node) (G.Nodes, error) {
	first, err := spec.Apply(s, grad)
	return append(G.Nodes{first}, slices.Repeat(G.Nodes{grad}, len(in)-1)...), err
}

// squares is a Spec of two outputs: the sum of the squares of x, a scalar, and the negative of this sum.
type squares struct{}

func (squares) Name() string { return "squares" }

func (squares) Infer(in []spec.Operand) ([]spec.Operand, error) {
	o := spec.Operand{Dtype: in[0].Dtype, Shape: tensor.ScalarShape()}
	return []spec.Operand{o, o}, nil
}

func (squares) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	k.Phase(1, func(int, *cpu.Worker) {
		sum := 0.0
		for _, x := range cpu.Slice[float64](in[0].Buf) {
			sum += x * x
		}
		cpu.Slice[float64](out[0].Buf)[0], cpu.Slice[float64](out[1].Buf)[0] = sum, -sum
	})
}

func (squares) Grad(_ []bool, in G.Nodes, _, grad *G.Node) (G.Nodes, error) {
	dx, err := spec.Apply(squaresGrad{}, in[0], grad)
	return G.Nodes{dx}, err
}

// same is the shape rule of a Spec with one output, which is like its first operand.
type same struct{}

func (same) Infer(in []spec.Operand) ([]spec.Operand, error) { return in[:1], nil }

type squaresGrad struct{ same }

func (squaresGrad) Name() string { return "squares gradient" }

func (squaresGrad) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	k.Phase(1, func(int, *cpu.Worker) {
		dx, g := cpu.Slice[float64](out[0].Buf), cpu.Slice[float64](in[1].Buf)[0]
		for i, x := range cpu.Slice[float64](in[0].Buf) {
			dx[i] = 2 * g * x
		}
	})
}

// refuses is the identity. A negative first element is an error of the run, a first element above 100 a panic.
type refuses struct{ same }

var errNegative = errors.New("negative")

func (refuses) Name() string { return "refuses" }

func (refuses) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	x := func() []float64 { return cpu.Slice[float64](in[0].Buf) }
	k.Check = func() error {
		if x()[0] < 0 {
			return errNegative
		}
		return nil
	}
	k.Phase(1, func(int, *cpu.Worker) {
		if x()[0] > 100 {
			panic("too large")
		}
		copy(cpu.Slice[float64](out[0].Buf), x())
	})
}

// unbindable is the identity. Its Bind panics.
type unbindable struct{ same }

func (unbindable) Name() string { return "unbindable" }

func (unbindable) Bind(*cpu.Kernel, []spec.Arg, []spec.Arg) { panic("at binding") }

// network is a graph of this module's ops: the three branches of NSA and their gradients. Queries, keys and values are
// inputs.
type network struct {
	graph *G.ExprGraph
	in    G.Nodes
	cost  *G.Node
}

func (n *network) input(name string, shape ...int) *G.Node {
	x := G.NewTensor(n.graph, tensor.Float64, len(shape), G.WithShape(shape...), G.WithName(name))
	n.in = append(n.in, x)
	return x
}

func newNetwork(t testing.TB) *network {
	t.Helper()
	const b, s, hq, hkv, dk, dv = 2, 21, 4, 2, 6, 5
	p := ops.Params{BlockLen: 4, Stride: 2, SelectBlock: 4, TopN: 4, Window: 5}
	blocks := ops.NumCompressed(s, p.BlockLen, p.Stride)
	n := &network{graph: G.NewGraph()}
	q, kc, vc := n.input("q", b, s, hq, dk), n.input("kc", b, blocks, hkv, dk), n.input("vc", b, blocks, hkv, dv)
	k, v := n.input("k", b, s, hkv, dk), n.input("v", b, s, hkv, dv)
	compressed := G.Must(ops.CompressedAttention(q, kc, vc, p))
	idx := G.Must(ops.SelectBlocks(q, kc, G.Must(ops.LSE(compressed)), p))
	selected := G.Must(ops.SelectedAttention(q, k, v, idx, p.SelectBlock))
	window := G.Must(ops.SlidingWindow(q, k, v, p.Window))
	sum := G.Must(spec.Apply(scaledSum{0.5}, compressed, selected, window))
	n.cost = G.Must(spec.Apply(squares{}, G.Must(spec.Apply(scaledSum{2}, sum, window))))
	n.let(t, 1)
	return n
}

// let binds new values to all inputs.
func (n *network) let(t testing.TB, seed uint64) {
	t.Helper()
	for i, in := range n.in {
		v := testutil.Normal(10*seed+uint64(i), in.Shape().TotalSize())
		require.NoError(t, G.Let(in, tensor.New(tensor.WithShape(in.Shape()...), tensor.WithBacking(v))))
	}
}

// grad adds the gradients with respect to all inputs.
func (n *network) grad(t testing.TB) *network {
	t.Helper()
	testutil.Must(graph.Grad(n.cost, n.in...))(t)
	return n
}

// results runs vm and returns copies of the cost and of all gradients.
func (n *network) results(t testing.TB, vm G.VM) [][]float64 {
	t.Helper()
	require.NoError(t, vm.RunAll())
	out := [][]float64{numbers(t, n.cost.Value())}
	for _, in := range n.in {
		out = append(out, gradient(t, in))
	}
	vm.Reset()
	return out
}

// vector adds a vector to g, with these values.
func vector(g *G.ExprGraph, name string, values ...float64) *G.Node {
	return G.NodeFromAny(g, dense(values...), G.WithName(name))
}

func dense(values ...float64) *tensor.Dense { return tensor.New(tensor.WithBacking(values)) }

// let binds a vector of these values to n.
func let(t testing.TB, n *G.Node, values ...float64) {
	t.Helper()
	require.NoError(t, G.Let(n, dense(values...)))
}

func newMachine(t testing.TB, g *G.ExprGraph, opts ...graph.Option) *graph.Machine {
	t.Helper()
	return testutil.Closing(graph.NewMachine(g, opts...))(t)
}

func run(t testing.TB, g *G.ExprGraph, opts ...graph.Option) *graph.Machine {
	t.Helper()
	m := newMachine(t, g, opts...)
	require.NoError(t, m.RunAll())
	return m
}
