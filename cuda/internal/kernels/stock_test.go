package kernels_test

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/cuda/cudatest"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver/fakedriver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/stock"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// stockGraph is the graph of a case in one type, with the gradient of sum(out*weights) if it has one.
type stockGraph struct {
	*G.ExprGraph
	in  G.Nodes
	out *G.Node
}

func (c stockCase) graph(t testing.TB, dt tensor.Dtype) stockGraph {
	t.Helper()
	g := stockGraph{ExprGraph: G.NewGraph()}
	for i, s := range c.in {
		g.in = append(g.in, s.node(g.ExprGraph, dt, fmt.Sprint("input ", i), uint64(i+1)))
	}
	g.out = testutil.Must(c.build(g.in))(t)
	if c.noGrad {
		return g
	}
	cost := g.out
	if !cost.IsScalar() {
		weights := positive(g.out.Shape()...).node(g.ExprGraph, dt, "weights", 99)
		cost = G.Must(G.Sum(G.Must(G.HadamardProd(g.out, weights))))
	}
	require.NoError(t, testutil.Err(G.Grad(cost, g.in...)))
	return g
}

func eachStock(t *testing.T, cases []stockCase, f func(t *testing.T, c stockCase)) {
	for _, c := range cases {
		t.Run(c.String(), func(t *testing.T) { f(t, c) })
	}
}

// stockOps returns the nodes of a graph that are computed by an op, not given.
func stockOps(g *G.ExprGraph) (list G.Nodes) {
	for _, n := range g.AllNodes() {
		if _, constant := n.Op().(interface{ Value() G.Value }); n.Op() != nil && !constant {
			list = append(list, n)
		}
	}
	return list
}

// planStock builds the launches of a node, which may be refused.
func planStock(n *G.Node) (*kernels.Plan, graph.Call, error) {
	of := func(n *G.Node) spec.Operand { return spec.Operand{Dtype: n.Dtype(), Shape: n.Shape()} }
	call := graph.Call{Op: n.Op(), Out: []spec.Operand{of(n)}}
	for children := n.Graph().From(n.ID()); children.Next(); {
		call.In = append(call.In, of(children.Node().(*G.Node)))
	}
	p, err := planOf(h200, "", stock.Recognise(n.Op()), call)
	return p, call, err
}

func stockPlans(t *testing.T) (plans []*kernels.Plan) {
	for _, c := range append(smallStockCases(), largeStockCases()...) {
		for _, n := range stockOps(c.graph(t, tensor.Float32).ExprGraph) {
			p, _, err := planStock(n)
			require.NoError(t, err, "%v", n.Op())
			plans = append(plans, p)
		}
	}
	return plans
}

// TestStockRecognition builds every case with its gradients and looks at all of its ops. It holds what is read of them
// to the version of Gorgonia that is linked in: after an upgrade, check again each op that stock.Recognise reads: its
// fields, its String, its Do.
func TestStockRecognition(t *testing.T) {
	if text, err := os.ReadFile("../../../go.mod"); err == nil { // beside the sources
		require.Contains(t, string(text), "gorgonia.org/gorgonia v0.9.18\n")
		require.Contains(t, string(text), "gorgonia.org/tensor v0.9.24\n")
	}
	fields, kinds := map[string]string{}, map[reflect.Type]int{}
	eachStock(t, smallStockCases(), func(t *testing.T, c stockCase) {
		g := c.graph(t, tensor.Float32)
		require.Equal(t, c.root, stock.Recognise(g.out.Op()), "%T %v", g.out.Op(), g.out.Op())
		for _, n := range stockOps(g.ExprGraph) {
			typ := reflect.Indirect(reflect.ValueOf(n.Op())).Type()
			require.Equal(t, "gorgonia.org/gorgonia", typ.PkgPath())
			var names []string
			for i := range typ.NumField() {
				names = append(names, typ.Field(i).Name)
			}
			fields[typ.Name()] = strings.Join(names, " ")
			op := stock.Recognise(n.Op())
			require.NotNil(t, op, "%T %v", n.Op(), n.Op())
			kinds[reflect.TypeOf(op)]++
			_, _, err := planStock(n)
			require.NoError(t, err, "%v", n.Op())
		}
	})
	require.Len(t, kinds, len(stock.Entries()))
	// All fields of the structs, not only those that are read: a new one may change what the op does.
	require.Equal(t, map[string]string{
		"elemUnaryOp": "ʘUnaryOperator argTensor numericResult", "elemBinOp": "ʘBinaryOperator arg0 arg1 retSame",
		"minBetween": "", "maxBetween": "", "linAlgBinOp": "āBinaryOperator transA transB",
		"tensordotOp": "aAxes bAxes aDims bDims retDims", "sumOp": "along d inputShape", "maxOp": "along d",
		"softmaxOp": "shape axis isLog", "softmaxDiffOp": "softmaxOp", "reshapeOp": "from to", "transposeOp": "pattern d",
		"sliceOp": "Slice along a d", "sliceIncrOp": "sliceOp", "concatOp": "axis d children", "repeatOp": "along inputShape",
		"sizeOp": "axis d val", "atOp": "coordinates d",
	}, fields)
}

// elemUnaryOp has a name of Gorgonia's and is none of its ops.
type elemUnaryOp struct{ G.Op }

// TestStockRefusals checks the reason for each op without a kernel.
func TestStockRefusals(t *testing.T) {
	array := func(dt tensor.Dtype, shape ...int) *G.Node {
		return G.NewTensor(G.NewGraph(), dt, len(shape), G.WithShape(shape...), G.WithName("x"))
	}
	x, image := array(tensor.Float32, 2, 3), array(tensor.Float32, 1, 2, 4, 4)
	require.Nil(t, stock.Recognise(nil))
	for _, n := range []*G.Node{
		G.Must(G.MaxPool2D(image, tensor.Shape{2, 2}, []int{0, 0}, []int{2, 2})),
		G.Must(G.Im2Col(image, tensor.Shape{3, 3}, tensor.Shape{1, 1}, tensor.Shape{1, 1}, tensor.Shape{1, 1})),
		G.Must(G.Dropout(x, 0.5)),
		G.Must(G.ApplyOp(elemUnaryOp{G.Must(G.Exp(array(tensor.Float32, 2, 3))).Op()}, x)),
	} {
		assert.Nil(t, stock.Recognise(n.Op()), "%v", n.Op())
	}
	for _, c := range []struct {
		node   *G.Node
		reason graph.Reason
	}{
		{G.Must(G.Exp(array(tensor.Float64, 2, 3))), graph.ReasonType},
		{G.Must(G.Lt(x, G.NewConstant(float32(0)), false)), graph.ReasonType},
		{G.Must(G.Sum(array(tensor.Float32, 2, 3, 4, 5), 2)), graph.ReasonShape},
	} {
		_, _, err := planStock(c.node)
		wantRefusal(t, c.node.Op(), err, c.reason)
	}
}

// TestStockOpsMatchGorgonia runs every op of every case, gradients included, on the GPU.
func TestStockOpsMatchGorgonia(t *testing.T) {
	compareStock(t, openGPU(t), append(smallStockCases(), largeStockCases()...))
}

// compareStock runs each op of the cases on dev, once for the same shapes, on the input values that Gorgonia computes
// in float32. It compares the result with that of the same op in float64. The op's own float32 result is the input of
// later ops.
func compareStock(t *testing.T, dev device, cases []stockCase) {
	seen := map[string]bool{}
	eachStock(t, cases, func(t *testing.T, c stockCase) {
		g := c.graph(t, tensor.Float32)
		nodes, twins, values := stockOps(g.ExprGraph), stockOps(c.graph(t, tensor.Float64).ExprGraph), map[int64]G.Value{}
		require.Len(t, twins, len(nodes), "ops in float64")
		for i, n := range nodes {
			require.Equal(t, n.Op().String(), twins[i].Op().String(), "op %d in float32 and in float64", i)
			var in, wide []G.Value
			for children := g.From(n.ID()); children.Next(); {
				child := children.Node().(*G.Node)
				v, computed := values[child.ID()]
				if !computed {
					v = child.Value()
				}
				in, wide = append(in, v), append(wide, stockValue(tensor.Float64, v.Shape(), testutil.Floats(t, v.Data())))
			}
			want := stockDo(t, twins[i], wide)
			values[n.ID()] = stockDo(t, n, in)
			key := fmt.Sprintf("%T%v", stock.Recognise(n.Op()), stock.Recognise(n.Op()))
			for _, v := range append(in, want) {
				key += fmt.Sprint(v.Shape())
			}
			if seen[key] {
				continue
			}
			seen[key] = true
			plan, call, err := planStock(n)
			require.NoError(t, err, "%v", n.Op())
			compareStockOp(t, dev, plan, call, n, in, testutil.Floats(t, want.Data()))
		}
	})
}

// stockDo runs the op of n as a machine does, and returns its result in the shape of the node.
func stockDo(t *testing.T, n *G.Node, in []G.Value) (v G.Value) {
	t.Helper()
	var err error
	op := n.Op()
	if p, ok := op.(G.UsePreallocDoer); ok && op.CallsExtern() && op.ReturnsPtr() && !n.IsScalar() {
		v, err = p.UsePreallocDo(tensor.New(tensor.Of(n.Dtype()), tensor.WithShape(n.Shape()...)), in...)
	} else {
		v, err = op.Do(in...)
	}
	require.NoError(t, err, "%v", op)
	require.Equal(t, n.Shape().TotalSize(), v.Shape().TotalSize(), "%v: result %v of a node %v", op, v.Shape(), n.Shape())
	return stockValue(n.Dtype(), n.Shape(), testutil.Floats(t, v.Data()))
}

// stockValue returns numbers as Gorgonia holds them.
func stockValue(dt tensor.Dtype, shape tensor.Shape, v []float64) G.Value {
	return opcases.Array{Name: "x", Shape: shape, Floats: v}.Node(G.NewGraph(), dt).Value()
}

// compareStockOp runs one op twice, over poison.
func compareStockOp(t *testing.T, dev device, plan *kernels.Plan, call graph.Call, n *G.Node, in []G.Value,
	want []float64) {
	t.Helper()
	defer dev.reset(t)
	var args []arg
	for i, o := range call.In {
		args = append(args, arg{o, dev.put(t, f32.encode(testutil.Floats(t, in[i].Data())))})
	}
	var runs [2][]byte
	for i := range runs {
		dev.otherOrder()
		y := output(t, dev, call.Out[0].Bytes())
		work := dev.put(t, bytes.Repeat([]byte{0xff, byte(0x7f + i)}, int(plan.WorkBytes()+1)/2))
		bindPlan(t, plan, work, append(args[:len(args):len(args)], arg{call.Out[0], y.at})...).run(t, dev)
		runs[i] = y.bytes(t, dev)
	}
	require.Equal(t, runs[0], runs[1], "%v: two runs differ", n.Op())
	tolerance := 1e-5
	// terms may cancel: then they are the scale
	if sum, ok := stock.Recognise(n.Op()).(stock.Reduce); ok && !sum.Max && len(want) == 1 {
		terms := 0.0
		for _, v := range testutil.Floats(t, in[0].Data()) {
			terms += math.Abs(v)
		}
		tolerance = max(tolerance, 1e-6*terms/math.Abs(want[0]))
	}
	testutil.Within(t, n.Op().String(), f32.decode(runs[1]), want, tolerance)
}

// run runs a case twice on a machine and returns its output and the gradients of its inputs. On a device all steps must
// run there.
func (c stockCase) run(t *testing.T, dt tensor.Dtype, opts ...graph.Option) (results [][]float64) {
	t.Helper()
	g := c.graph(t, dt)
	nodes := G.Nodes{g.out}
	for _, n := range g.in {
		if d := n.Deriv(); d != nil && !c.noGrad {
			nodes = append(nodes, d)
		}
	}
	m := testutil.Must(graph.NewMachine(g.ExprGraph, append(opts, graph.WithKeep(nodes...))...))(t)
	defer func() { require.NoError(t, m.Close()) }()
	for range 2 {
		require.NoError(t, m.RunAll())
	}
	require.NoError(t, m.Synchronize())
	for _, n := range nodes {
		results = append(results, testutil.Floats(t, testutil.Must(graph.HostValue(n.Value()))(t).Data()))
	}
	for _, s := range m.Plan().Steps {
		assert.False(t, len(opts) > 0 && s.Implementation == "host", "%s runs on the host: %v", s.Op, s.Refused)
	}
	return results
}

// onBackend returns the results of a case on a machine of b, launched and captured.
func (c stockCase) onBackend(t *testing.T, b graph.Backend) (launched, captured [][]float64) {
	t.Helper()
	return c.run(t, tensor.Float32, graph.WithBackend(b)), c.run(t, tensor.Float32, graph.WithBackend(b),
		graph.WithCapture())
}

// TestStockGraphsRunOnTheDevice plans and launches every case on a driver whose kernels compute nothing.
func TestStockGraphsRunOnTheDevice(t *testing.T) {
	t.Parallel()
	fake := fakedriver.New()
	for name := range compiled(t) {
		fake.Kernel(name, fakedriver.Kernel{Run: func(*fakedriver.Launch) {}})
	}
	b := testutil.Must(cuda.Open(0, driver.WithDriver(fake)))(t)
	eachStock(t, smallStockCases(), func(t *testing.T, c stockCase) { c.onBackend(t, b) })
	require.NoError(t, b.Close())
	require.Empty(t, fake.Leaks())
}

// TestStockGraphsOnGPU compares the results of every case with those of a machine on the CPU in float64.
func TestStockGraphsOnGPU(t *testing.T) {
	b := cudatest.Open(t)
	eachStock(t, smallStockCases(), func(t *testing.T, c stockCase) {
		want := c.run(t, tensor.Float64)
		launched, captured := c.onBackend(t, b)
		for i := range want {
			testutil.Within(t, fmt.Sprint("launched: result ", i), launched[i], want[i], 1e-5)
			testutil.Within(t, fmt.Sprint("captured: result ", i), captured[i], want[i], 1e-5)
		}
	})
}
