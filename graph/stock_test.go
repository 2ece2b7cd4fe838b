package graph_test

import (
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/cudatest"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// operand is an input of a test graph. Its values are standard normal, or uniform if lo < hi.
type operand struct {
	name   string
	shape  []int
	lo, hi float64
}

func normal(shape ...int) operand   { return operand{shape: shape} }
func positive(shape ...int) operand { return operand{shape: shape, lo: 0.5, hi: 2} }

func (o operand) values(seed uint64) []float64 {
	n := tensor.ProdInts(o.shape)
	if o.lo < o.hi {
		return testutil.Uniform(seed, n, o.lo, o.hi)
	}
	return testutil.Normal(seed, n)
}

func (o operand) value(dt tensor.Dtype, v []float64) G.Value {
	switch single := dt == tensor.Float32; {
	case len(o.shape) == 0 && single:
		return G.NewF32(float32(v[0]))
	case len(o.shape) == 0:
		return G.NewF64(v[0])
	case single:
		return tensor.New(tensor.WithShape(o.shape...), tensor.WithBacking(testutil.Convert[float32](v)))
	}
	return tensor.New(tensor.WithShape(o.shape...), tensor.WithBacking(append([]float64(nil), v...)))
}

// stock is a graph of Gorgonia's own ops. No graph has both SoftMax and LogSoftMax of one input, because their nodes
// merge.
type stock struct {
	name  string
	in    []operand
	build func(in []*G.Node) (*G.Node, error)
	// wrong says what is wrong with upstream's gradient, if anything. Then only values are compared, and Grad is an
	// error, unless corrected is set: then its gradients are compared, too.
	wrong     string
	corrected bool
	// tape says what is wrong with TapeMachine, if anything. Then only central differences are compared.
	tape string
	eval bool // run in evaluation mode
}

// chain applies fs until one fails.
func chain(x *G.Node, fs ...func(*G.Node) (*G.Node, error)) (*G.Node, error) {
	var err error
	for _, f := range fs {
		if x, err = f(x); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// built is a test graph: the output, and the cost sum(out*weights) with weights that are an input.
type built struct {
	graph *G.ExprGraph
	in    G.Nodes
	out   *G.Node
	cost  *G.Node
	of    stock
}

func (c stock) graph(t testing.TB) built { return c.graphOf(t, tensor.Float64) }

func (c stock) graphOf(t testing.TB, dt tensor.Dtype) built {
	t.Helper()
	b := built{graph: G.NewGraph(), of: c}
	for _, o := range c.in {
		b.in = append(b.in, G.NewTensor(b.graph, dt, len(o.shape), G.WithShape(o.shape...), G.WithName(o.name)))
	}
	b.out = testutil.Must(c.build(b.in))(t)
	b.cost = b.out
	if !b.out.IsScalar() && c.wrong != noGradient {
		b.cost = G.Must(G.Sum(G.Must(G.HadamardProd(b.out, weighted(b.out, "weights of the test", 99)))))
	}
	return b
}

func (b built) let(t testing.TB, values [][]float64) {
	t.Helper()
	for i, n := range b.in {
		require.NoError(t, G.Let(n, b.of.in[i].value(n.Dtype(), values[i])))
	}
}

func (c stock) inputs(run uint64) (values [][]float64) {
	for i, o := range c.in {
		values = append(values, o.values(10*run+uint64(i)))
	}
	return values
}

// numbers copies a value into float64.
func numbers(t testing.TB, v G.Value) []float64 {
	t.Helper()
	require.NotNil(t, v)
	v = testutil.Must(graph.HostValue(v))(t)
	if d, ok := v.(*tensor.Dense); ok && d.RequiresIterator() {
		v = d.Materialize().(*tensor.Dense)
	}
	return testutil.Floats(t, v.Data())
}

func gradient(t testing.TB, n *G.Node) []float64 {
	t.Helper()
	return numbers(t, testutil.Must(n.Grad())(t))
}

var gradients = map[string]func(*G.Node, ...*G.Node) (G.Nodes, error){"Grad": graph.Grad, "gorgonia.Grad": G.Grad}

// test runs the graph on the machine, twice with other inputs. It compares values with those of TapeMachine without
// gradients, and gradients with central differences.
func (c stock) test(t *testing.T) {
	var ofTape, differences [2]func() [][]float64 // of the runs
	for run := range ofTape {
		values := c.inputs(uint64(run))
		ofTape[run] = sync.OnceValue(func() [][]float64 { return c.byTapeMachine(t, values, false) })
		differences[run] = sync.OnceValue(func() [][]float64 { return c.differences(t, values) })
	}
	for name, grad := range gradients {
		b := c.graph(t)
		right, err := c.wrong == "" || c.corrected, errors.New(c.wrong) // right gradients of Grad
		if c.wrong != noGradient && (name == "Grad" || !c.corrected) {
			if err = testutil.Err(grad(b.cost, b.in...)); right {
				require.NoError(t, err, name)
			} else if name == "Grad" {
				require.ErrorContains(t, err, "has no gradient: Gorgonia's is "+c.wrong)
			}
		}
		m := newMachine(t, b.graph, append(c.options(), graph.WithKeep(b.out))...)
		for run := range uint64(2) {
			values := c.inputs(run)
			b.let(t, values)
			require.NoError(t, m.RunAll())
			shape := b.out.Shape()
			if strings.HasPrefix(c.name, "Tensordot") && len(shape) == 0 {
				shape = tensor.Shape{1}
			}
			require.Equal(t, []int(shape), []int(b.out.Value().Shape()), "shape")
			counts := m.Counts() // an op of this module adds up gradients
			require.EqualValues(t, (run+1)*uint64(len(m.Plan().Steps)), counts["host"]+counts["cpu"])
			if c.tape == "" {
				testutil.Within(t, "value", numbers(t, b.out.Value()), ofTape[run]()[0], 1e-12)
			}
			check := func(by string, want [][]float64) {
				for i, want := range want {
					within(t, fmt.Sprintf("%s by %s of %s, run %d", name, c.in[i].name, by, run), gradient(t, b.in[i]), want)
				}
			}
			if right && (name == "Grad" || !c.corrected) {
				check("central differences", differences[run]())
			}
			if c.tape == "" && err == nil && name == "gorgonia.Grad" {
				check("TapeMachine", c.byTapeMachine(t, values, true)[1:])
			}
		}
	}
}

func (c stock) options() []graph.Option {
	return map[bool][]graph.Option{true: {graph.WithEvalMode()}}[c.eval]
}

// within compares gradients; one of zeros has no scale of its own.
func within(t *testing.T, what string, got, want []float64) {
	t.Helper()
	require.Len(t, got, len(want), what)
	scale := 0.0
	for _, w := range want {
		scale = max(scale, math.Abs(w))
	}
	for i := range want {
		if !(math.Abs(got[i]-want[i]) <= 1e-6*max(scale, 1e-2)) {
			t.Errorf("%s: got %v at %d, want %v", what, got[i], i, want[i])
			return
		}
	}
}

// byTapeMachine returns the output of the graph and, if withGrads, the gradients of its inputs, computed by
// TapeMachine.
func (c stock) byTapeMachine(t testing.TB, values [][]float64, withGrads bool) (results [][]float64) {
	t.Helper()
	b := c.graph(t)
	b.let(t, values)
	var opts []G.VMOpt
	if c.eval {
		opts = append(opts, G.EvalMode())
	}
	if withGrads { // TapeMachine needs memory of its own for gradients to be right
		testutil.Must(G.Grad(b.cost, b.in...))(t)
		opts = append(opts, G.BindDualValues(b.in...))
	}
	var out G.Value
	G.Read(b.out, &out)
	m := G.NewTapeMachine(b.graph, opts...)
	defer m.Close()
	require.NoError(t, m.RunAll())
	results = append(results, numbers(t, out))
	for _, n := range b.in {
		if withGrads {
			results = append(results, gradient(t, n))
		}
	}
	return results
}

// differences returns the gradients of the cost by central differences.
func (c stock) differences(t testing.TB, values [][]float64) (grads [][]float64) {
	t.Helper()
	b := c.graph(t)
	m := testutil.Must(graph.NewMachine(b.graph, c.options()...))(t)
	defer m.Close()
	for i := range values {
		at := append([][]float64(nil), values...)
		grads = append(grads, testutil.CentralDifference(func(x []float64) float64 {
			at[i] = x
			b.let(t, at)
			require.NoError(t, m.RunAll())
			return numbers(t, b.cost.Value())[0]
		}, values[i], 1e-5))
	}
	return grads
}

// BenchmarkStock runs graphs of stock ops with gradients on a Machine and on a TapeMachine: 20 steps of a recurrent
// network, and 16 slices of a matrix that are joined again.
func BenchmarkStock(b *testing.B) {
	rnn := on("rnn", func(n []*G.Node) (*G.Node, error) {
		h := n[1]
		for range 20 {
			sum := G.Must(G.Add(G.Must(G.Mul(n[0], n[2])), G.Must(G.Mul(h, n[3]))))
			h = G.Must(G.Tanh(G.Must(G.BroadcastAdd(sum, n[4], nil, []byte{0}))))
		}
		return h, nil
	}, normal(8, 16), normal(8, 32), normal(16, 32), normal(32, 32), normal(1, 32))
	slices := on("slices", func(n []*G.Node) (*G.Node, error) {
		var parts G.Nodes
		for i := range 16 {
			parts = append(parts, G.Must(G.Tanh(G.Must(G.Slice(n[0], G.S(4*i, 4*i+4))))))
		}
		return G.Concat(0, parts...)
	}, normal(64, 32))
	for _, c := range []stock{rnn, slices} {
		for name, newVM := range map[string]func(g *G.ExprGraph) G.VM{
			"Machine":     func(g *G.ExprGraph) G.VM { return newMachine(b, g) },
			"TapeMachine": func(g *G.ExprGraph) G.VM { return G.NewTapeMachine(g) },
		} {
			b.Run(c.name+" "+name, func(b *testing.B) {
				net := c.graphOf(b, tensor.Float32)
				testutil.Must(G.Grad(net.cost, net.in...))(b)
				net.let(b, c.inputs(1))
				vm := newVM(net.graph)
				b.ReportAllocs()
				for b.Loop() {
					require.NoError(b, vm.RunAll())
					vm.Reset()
				}
			})
		}
	}
}

// onHost are the types of the ops that a GPU has no kernel for.
const onHost = "BatchNormOp batchnormDiffOp GroupNormOp groupNormDiffOp avgPoolOp maxPoolOp maxPoolDiffOp globalAveragePoolOp im2colOp col2imOp " +
	"upsampleOp upsampleDiffOp byIndicesOp byIndicesOpDiffOp ctcLossOp ctcLossDiffOp dropoutOp sparsemaxOp sparsemaxDiffOp diagFlatOp yoloOp"

// TestGorgoniaOnGPU runs the graphs of TestGorgonia in float32 on a GPU. Values and gradients are those of the CPU in
// float64. No op that has a kernel runs on the host. A recording and another run give the same bits.
func TestGorgoniaOnGPU(t *testing.T) {
	backend := cudatest.Open(t)
	log.SetOutput(io.Discard) // GroupNorm prints its gradients
	defer log.SetOutput(os.Stderr)
	for _, c := range gorgonias() {
		t.Run(c.name, func(t *testing.T) {
			values := c.inputs(1)
			for i, v := range values { // float32 holds these inputs exactly, so that only the computation rounds
				values[i] = testutil.Convert[float64](testutil.Convert[float32](v))
			}
			want := c.results(t, tensor.Float64, values)
			first := c.results(t, tensor.Float32, values, graph.WithBackend(backend), graph.WithPolicy(graph.Policy{}))
			for name, w := range want {
				testutil.Within(t, name, first[name], w, 1e-5)
			}
			for range 2 {
				again := c.results(t, tensor.Float32, values, graph.WithBackend(backend), graph.WithCapture(),
					graph.WithPolicy(graph.Policy{}))
				require.Equal(t, first, again)
			}
		})
	}
}

// results runs the graph three times and returns the output, the cost and the gradients of the last run, by name.
func (c stock) results(t testing.TB, dt tensor.Dtype, values [][]float64, opts ...graph.Option) map[string][]float64 {
	t.Helper()
	b := c.graphOf(t, dt)
	stacked := strings.HasPrefix(c.name, "BatchNormStacked") // the gradient of the first bias is zero except for rounding
	withGrads := !stacked && (c.wrong == "" || c.corrected)
	if withGrads {
		testutil.Must(graph.Grad(b.cost, b.in...))(t)
	}
	m := testutil.Closing(graph.NewMachine(b.graph, slices.Concat(c.options(), opts,
		[]graph.Option{graph.WithKeep(b.out, b.cost)})...))(t)
	b.let(t, values)
	for range 3 {
		require.NoError(t, m.RunAll())
	}
	for _, s := range m.Plan().Steps {
		if !m.Plan().Device.Host && s.Implementation == "host" && s.Node.Dtype() != tensor.Bool {
			require.Contains(t, strings.Fields(onHost), reflect.Indirect(reflect.ValueOf(s.Node.Op())).Type().Name(),
				"%s: %v", s.Op, s.Refused)
		}
	}
	all := map[string][]float64{"value": numbers(t, b.out.Value()), "cost": numbers(t, b.cost.Value())}
	for i, n := range b.in {
		if withGrads {
			all["gradient of "+c.in[i].name] = gradient(t, n)
		}
	}
	return all
}
