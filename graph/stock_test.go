package graph_test

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// operand is an input of a test graph: standard normal values, or uniform ones where lo < hi.
type operand struct {
	name   string
	shape  []int
	lo, hi float64
}

func normal(name string, shape ...int) operand { return operand{name: name, shape: shape} }
func positive(name string, shape ...int) operand {
	return operand{name: name, shape: shape, lo: 0.5, hi: 2}
}

// values are the operand's elements in a run.
func (o operand) values(seed uint64) []float64 {
	n := tensor.Shape(o.shape).TotalSize()
	if len(o.shape) == 0 {
		n = 1
	}
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

// stock is a graph of gorgonia's own ops.
type stock struct {
	name  string
	in    []operand
	build func(in []*G.Node) (*G.Node, error)
	// wrong says what is wrong with upstream's gradient, where it is: then values alone are compared, and Grad's gradients
	// if it corrects them.
	wrong     string
	corrected bool
	// tape says how TapeMachine goes wrong, where it does: then central differences decide alone.
	tape string
	eval bool // run in evaluation mode
}

func unary(name string, f func(*G.Node) (*G.Node, error), in operand) stock {
	return stock{name: name, in: []operand{in}, build: func(n []*G.Node) (*G.Node, error) { return f(n[0]) }}
}

func binary(name string, f func(a, b *G.Node) (*G.Node, error), a, b operand) stock {
	return stock{name: name, in: []operand{a, b}, build: func(n []*G.Node) (*G.Node, error) { return f(n[0], n[1]) }}
}

func axes(name string, f func(*G.Node, ...int) (*G.Node, error), shape []int, along ...int) stock {
	return stock{name: fmt.Sprintf("%s %v of %v", name, along, shape), in: []operand{normal("x", shape...)},
		build: func(n []*G.Node) (*G.Node, error) { return f(n[0], along...) }}
}

func broadcast(name string, f func(a, b *G.Node, l, r []byte) (*G.Node, error), a, b operand, l, r []byte) stock {
	return stock{name: name, in: []operand{a, b}, build: func(n []*G.Node) (*G.Node, error) { return f(n[0], n[1], l, r) }}
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

// stocks are the graphs. Not here, since they mean nothing upstream: gradients through Dropout, which divide by p, and
// SoftMax together with LogSoftMax of one input, whose nodes merge.
var stocks = []stock{
	binary("add", G.Add, normal("a", 2, 3), normal("b", 2, 3)),
	binary("sub", G.Sub, normal("a", 2, 3), normal("b", 2, 3)),
	binary("hadamard product", G.HadamardProd, normal("a", 2, 3), normal("b", 2, 3)),
	binary("hadamard quotient", G.HadamardDiv, normal("a", 2, 3), positive("b", 2, 3)),
	binary("pow", G.Pow, positive("a", 2, 3), positive("b", 2, 3)),
	binary("scalar add", G.Add, normal("a"), normal("b")),
	binary("scalar product", G.HadamardProd, normal("a"), normal("b")),
	binary("scalar times tensor", G.HadamardProd, normal("a"), normal("b", 2, 3)),
	binary("tensor minus scalar", G.Sub, normal("a", 2, 3), normal("b")),
	binary("tensor over scalar", G.HadamardDiv, normal("a", 4), positive("b")),
	unary("neg", G.Neg, normal("x", 5)),
	unary("abs", G.Abs, normal("x", 5)),
	unary("square", G.Square, normal("x", 5)),
	unary("cube", G.Cube, normal("x", 5)),
	unary("sqrt", G.Sqrt, positive("x", 5)),
	unary("inverse", G.Inverse, positive("x", 5)),
	unary("exp", G.Exp, normal("x", 5)),
	unary("log", G.Log, positive("x", 5)),
	unary("log1p", G.Log1p, positive("x", 5)),
	unary("expm1", G.Expm1, normal("x", 5)),
	unary("sigmoid", G.Sigmoid, normal("x", 2, 5)),
	unary("tanh", G.Tanh, normal("x", 2, 5)),
	unary("sin", G.Sin, normal("x", 5)),
	unary("cos", G.Cos, normal("x", 5)),
	unary("softplus", G.Softplus, normal("x", 5)),
	unary("rectify", G.Rectify, normal("x", 2, 5)),
	{name: "leaky relu", in: []operand{normal("x", 2, 5)}, build: func(n []*G.Node) (*G.Node, error) { return G.LeakyRelu(n[0], 0.1) }},
	broadcast("broadcast add right", G.BroadcastAdd, normal("a", 3, 4), normal("b", 4), nil, []byte{0}),
	broadcast("broadcast add left", G.BroadcastAdd, normal("a", 3), normal("b", 3, 4), []byte{1}, nil),
	broadcast("broadcast product", G.BroadcastHadamardProd, normal("a", 3, 4), normal("b", 1, 4), nil, []byte{0}),
	broadcast("broadcast quotient", G.BroadcastHadamardDiv, normal("a", 3, 4), positive("b", 3, 1), nil, []byte{1}),
	broadcast("broadcast sub rank 3", G.BroadcastSub, normal("a", 2, 3, 4), normal("b", 2, 1, 4), nil, []byte{1}),
	axes("sum", G.Sum, []int{2, 3}),
	axes("sum", G.Sum, []int{2, 3}, 0),
	axes("sum", G.Sum, []int{2, 3, 4}, 1),
	axes("sum", G.Sum, []int{2, 3, 4}, 0, 2),
	axes("mean", G.Mean, []int{2, 3}),
	axes("mean", G.Mean, []int{2, 3}, 1),
	axes("max", G.Max, []int{2, 3}, 1),
	axes("max", G.Max, []int{7}),
	binary("matrix times matrix", G.Mul, normal("a", 2, 3), normal("b", 3, 4)),
	binary("matrix times vector", G.Mul, normal("a", 2, 3), normal("b", 3)),
	binary("vector times vector", G.Mul, normal("a", 3), normal("b", 3)),
	{name: "outer product", in: []operand{normal("a", 3), normal("b", 4)}, wrong: "one for the other", corrected: true,
		build: func(n []*G.Node) (*G.Node, error) { return G.OuterProd(n[0], n[1]) }},
	{name: "log2", in: []operand{positive("x", 5)}, wrong: "times ln 2, not over it", corrected: true,
		build: func(n []*G.Node) (*G.Node, error) { return G.Log2(n[0]) }},
	{name: "power of a softmax", in: []operand{normal("x", 2, 3), positive("y", 2, 3)}, wrong: "it turns the softmax into its log", corrected: true,
		build: func(n []*G.Node) (*G.Node, error) { return G.Pow(G.Must(G.SoftMax(n[0])), n[1]) }},
	{name: "batched product", in: []operand{normal("a", 2, 3, 4), normal("b", 2, 4, 2)},
		build: func(n []*G.Node) (*G.Node, error) { return G.BatchedMatMul(n[0], n[1]) }},
	{name: "transpose", in: []operand{normal("x", 2, 3)}, build: func(n []*G.Node) (*G.Node, error) { return G.Transpose(n[0], 1, 0) }},
	{name: "transpose rank 3", in: []operand{normal("x", 2, 3, 4)}, build: func(n []*G.Node) (*G.Node, error) { return G.Transpose(n[0], 2, 0, 1) }},
	{name: "reshape", in: []operand{normal("x", 2, 6)}, build: func(n []*G.Node) (*G.Node, error) { return G.Reshape(n[0], tensor.Shape{3, 4}) }},
	{name: "slice", in: []operand{normal("x", 4, 3)}, build: func(n []*G.Node) (*G.Node, error) { return G.Slice(n[0], G.S(1, 3)) }},
	{name: "slice of one row", in: []operand{normal("x", 4, 3)}, build: func(n []*G.Node) (*G.Node, error) { return G.Slice(n[0], G.S(2)) }},
	{name: "concat", in: []operand{normal("a", 2, 3), normal("b", 4, 3)},
		build: func(n []*G.Node) (*G.Node, error) { return G.Concat(0, n[0], n[1]) }},
	{name: "convolution", in: []operand{normal("x", 1, 2, 5, 5), normal("w", 2, 2, 3, 3)}, build: func(n []*G.Node) (*G.Node, error) {
		return G.Conv2d(n[0], n[1], tensor.Shape{3, 3}, []int{1, 1}, []int{1, 1}, []int{1, 1})
	}},
	{name: "max pool", in: []operand{normal("x", 1, 2, 4, 4)}, build: func(n []*G.Node) (*G.Node, error) {
		return G.MaxPool2D(n[0], tensor.Shape{2, 2}, []int{0, 0}, []int{2, 2})
	}},
	{name: "softmax", in: []operand{normal("x", 3, 4)}, build: func(n []*G.Node) (*G.Node, error) { return G.SoftMax(n[0]) }},
	{name: "log softmax", in: []operand{normal("x", 3, 4)}, build: func(n []*G.Node) (*G.Node, error) { return G.LogSoftMax(n[0]) }},
	axes("sum", G.Sum, []int{1}),
	axes("sum", G.Sum, []int{3, 1}, 0),
	axes("mean", G.Mean, []int{1, 1}, 0),
	axes("max", G.Max, []int{1, 4}, 0),
	binary("product of one element", G.Mul, normal("a", 1, 1), normal("b", 1, 1)),
	binary("vectors of one element", G.Mul, normal("a", 1), normal("b", 1)),
	binary("matrix with one row times vector", G.Mul, normal("a", 1, 3), normal("b", 3)),
	binary("sum of one element", G.Add, normal("a", 1, 1), normal("b", 1, 1)),
	{name: "slice of one element", in: []operand{normal("x", 4)}, build: func(n []*G.Node) (*G.Node, error) { return G.Slice(n[0], G.S(2)) }},
	{name: "slice of one element kept as a vector", in: []operand{normal("x", 4)}, build: func(n []*G.Node) (*G.Node, error) { return G.Slice(n[0], G.S(2, 3)) }},
	{name: "column", in: []operand{normal("x", 4, 3)}, build: func(n []*G.Node) (*G.Node, error) { return G.Slice(n[0], nil, G.S(1)) }},
	{name: "residual", in: []operand{normal("x", 2, 3, 4), normal("w", 4, 4)}, build: func(n []*G.Node) (*G.Node, error) {
		// x + reshape(reshape(x) w): TapeMachine's gradient is silently wrong, since Reshape aliases and Add works in place.
		y, err := chain(n[0],
			func(x *G.Node) (*G.Node, error) { return G.Reshape(x, tensor.Shape{6, 4}) },
			func(x *G.Node) (*G.Node, error) { return G.Mul(x, n[1]) },
			func(x *G.Node) (*G.Node, error) { return G.Reshape(x, tensor.Shape{2, 3, 4}) })
		if err != nil {
			return nil, err
		}
		return G.Add(n[0], y)
	}},
	{name: "reused node", in: []operand{normal("x", 2, 3)}, build: func(n []*G.Node) (*G.Node, error) {
		y := G.Must(G.Tanh(n[0]))
		return G.Add(G.Must(G.HadamardProd(y, y)), y)
	}},
	{name: "mlp with cross entropy", in: []operand{normal("x", 3, 4), normal("w1", 4, 5), normal("b1", 5), normal("w2", 5, 3), positive("y", 3, 3)}, build: mlp},
	{name: "gru cell", in: []operand{normal("x", 3), normal("h", 4), normal("wz", 4, 3), normal("uz", 4, 4), normal("wr", 4, 3), normal("ur", 4, 4), normal("wh", 4, 3), normal("uh", 4, 4)}, build: gru},
}

// mlp returns -mean(y * log softmax(relu(x w1 + b1) w2)).
func mlp(n []*G.Node) (*G.Node, error) {
	y := n[4]
	return chain(n[0],
		func(x *G.Node) (*G.Node, error) { return G.Mul(x, n[1]) },
		func(x *G.Node) (*G.Node, error) { return G.BroadcastAdd(x, n[2], nil, []byte{0}) },
		G.Rectify,
		func(x *G.Node) (*G.Node, error) { return G.Mul(x, n[3]) },
		func(x *G.Node) (*G.Node, error) { return G.LogSoftMax(x) },
		func(x *G.Node) (*G.Node, error) { return G.HadamardProd(x, y) },
		func(x *G.Node) (*G.Node, error) { return G.Mean(x) },
		G.Neg)
}

// gru returns the next state of a gated recurrent unit.
func gru(n []*G.Node) (*G.Node, error) {
	x, h := n[0], n[1]
	gate := func(w, u, h *G.Node) *G.Node { return G.Must(G.Add(G.Must(G.Mul(w, x)), G.Must(G.Mul(u, h)))) }
	z := G.Must(G.Sigmoid(gate(n[2], n[3], h)))
	r := G.Must(G.Sigmoid(gate(n[4], n[5], h)))
	c := G.Must(G.Tanh(gate(n[6], n[7], G.Must(G.HadamardProd(r, h)))))
	return G.Add(h, G.Must(G.HadamardProd(z, G.Must(G.Sub(c, h)))))
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
	var err error
	b.out, err = c.build(b.in)
	require.NoError(t, err)
	b.cost = b.out
	if !b.out.IsScalar() && c.wrong != noGradient {
		w := operand{name: "weights of the test", shape: b.out.Shape()}
		n := G.NewTensor(b.graph, dt, len(w.shape), G.WithShape(w.shape...), G.WithName(w.name), G.WithValue(w.value(dt, w.values(99))))
		b.cost = G.Must(G.Sum(G.Must(G.HadamardProd(b.out, n))))
	}
	return b
}

// let binds the values of all inputs.
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
	v, err := graph.HostValue(v)
	require.NoError(t, err)
	if d, ok := v.(*tensor.Dense); ok && d.RequiresIterator() {
		v = d.Materialize().(*tensor.Dense)
	}
	return testutil.Floats(t, v.Data())
}

var gradients = map[string]func(*G.Node, ...*G.Node) (G.Nodes, error){"Grad": graph.Grad, "gorgonia.Grad": G.Grad}

// TestStockGraphs runs graphs of gorgonia's ops on the machine: values as TapeMachine computes them without gradients,
// gradients as central differences say, twice with other inputs.
func TestStockGraphs(t *testing.T) {
	require.GreaterOrEqual(t, len(stocks), 40)
	for _, c := range stocks {
		t.Run(c.name, c.test)
	}
}

func (c stock) test(t *testing.T) {
	for name, grad := range gradients {
		b := c.graph(t)
		err := errors.New(c.wrong)
		if c.wrong != noGradient && (name == "Grad" || !c.corrected) {
			if _, err = grad(b.cost, b.in...); c.wrong == "" || c.corrected {
				require.NoError(t, err, name)
			}
		}
		m := newMachine(t, b.graph, append(c.options(), graph.WithKeep(b.out))...)
		for run := range uint64(2) {
			values := c.inputs(run)
			b.let(t, values)
			require.NoError(t, m.RunAll())
			counts := m.Counts() // gradients are added up by an op of this module
			require.EqualValues(t, (run+1)*uint64(len(m.Plan().Steps)), counts["host"]+counts["cpu"])
			if c.tape == "" {
				testutil.Within(t, "value", numbers(t, b.out.Value()), c.byTapeMachine(t, values, false)[0], 1e-12)
			}
			check := func(by string, want [][]float64) {
				for i, want := range want {
					v, err := b.in[i].Grad()
					require.NoError(t, err)
					within(t, fmt.Sprintf("%s by %s of %s, run %d", name, c.in[i].name, by, run), numbers(t, v), want)
				}
			}
			if c.wrong == "" || c.corrected && name == "Grad" {
				check("central differences", c.differences(t, values))
			}
			if c.tape == "" && err == nil && name == "gorgonia.Grad" {
				check("TapeMachine", c.byTapeMachine(t, values, true)[1:])
			}
		}
	}
}

func (c stock) options() []graph.Option {
	if c.eval {
		return []graph.Option{graph.WithEvalMode()}
	}
	return nil
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

// byTapeMachine returns the output of the graph and, if asked for, the gradients of its inputs by TapeMachine.
func (c stock) byTapeMachine(t testing.TB, values [][]float64, withGrads bool) (results [][]float64) {
	t.Helper()
	b := c.graph(t)
	b.let(t, values)
	var opts []G.VMOpt
	if c.eval {
		opts = append(opts, G.EvalMode())
	}
	if withGrads { // TapeMachine is right only where it has memory of its own for them
		_, err := G.Grad(b.cost, b.in...)
		require.NoError(t, err)
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
			d, err := n.Grad()
			require.NoError(t, err)
			results = append(results, numbers(t, d))
		}
	}
	return results
}

// differences returns the gradients of the cost by central differences.
func (c stock) differences(t testing.TB, values [][]float64) (grads [][]float64) {
	t.Helper()
	b := c.graph(t)
	m, err := graph.NewMachine(b.graph, c.options()...)
	require.NoError(t, err)
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
