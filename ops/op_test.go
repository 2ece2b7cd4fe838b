package ops_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// broken is a Spec that fails in Bind, in a phase or in Check, with the text in that field.
type broken struct{ bind, phase, check string }

func (broken) Name() string                                    { return "broken" }
func (broken) Infer(in []spec.Operand) ([]spec.Operand, error) { return in[:1], nil }
func (op broken) Bind(k *cpu.Kernel, _, _ []spec.Arg) {
	switch {
	case op.bind != "":
		panic(op.bind)
	case op.check != "":
		k.Check = func() error { return errors.New(op.check) }
	case op.phase != "":
		k.Phase(1, func(int, *cpu.Worker) { panic(op.phase) })
	}
}

// TestKernelFailuresNameTheOp: errors and panics of kernels are errors of the run, which name the op.
func TestKernelFailuresNameTheOp(t *testing.T) {
	for _, c := range []struct {
		spec broken
		err  string
	}{
		{broken{bind: "no luck"}, "ops: broken: panic: no luck"}, {broken{check: "not so"}, "ops: broken: not so"},
		{broken{phase: "oh"}, "panic in a kernel: oh"},
	} {
		g := G.NewGraph()
		require.NoError(t, testutil.Err(spec.Apply(c.spec, normal("x", 1, 2).Node(g, tensor.Float64))))
		require.ErrorContains(t, G.NewTapeMachine(g).RunAll(), c.err)
	}
}

// TestOpsRefuseOtherInputs: an op refuses operands that it was not built for.
func TestOpsRefuseOtherInputs(t *testing.T) {
	g := G.NewGraph()
	x, y := normal("x", 1, 2, 3).Node(g, tensor.Float64), normal("y", 2, 3, 2).Node(g, tensor.Float64)
	op := G.Must(ops.SiLU(x)).Op()
	for _, c := range []struct {
		values []G.Value
		err    string
	}{
		{nil, "silu: 0 inputs"},
		{[]G.Value{y.Value()}, "silu: input 0: got float64 (3, 2)"},
		{[]G.Value{nil}, "silu: input 0: no value"},
	} {
		require.ErrorContains(t, testutil.Err(op.Do(c.values...)), c.err)
	}
	require.ErrorContains(t, testutil.Err(op.InferShape()), "0 inputs")
	require.ErrorContains(t, testutil.Err(op.InferShape(tensor.Shape{3, 2})), "input 0 has shape (3, 2)")
}

// TestNoSecondDerivative: a request for the gradient of a gradient is an error.
func TestNoSecondDerivative(t *testing.T) {
	g := G.NewGraph()
	x, w := normal("x", 1, 2, 3).Node(g, tensor.Float64), normal("w", 2, 3).Node(g, tensor.Float64)
	grads := testutil.Must(G.Grad(G.Must(G.Sum(G.Must(ops.RMSNorm(x, w, 1)))), x, w))(t)
	require.ErrorContains(t, testutil.Err(G.Grad(G.Must(G.Sum(grads[0])), x)), "rms norm: has no gradient")
	require.ErrorContains(t, testutil.Err(G.Grad(G.Must(G.Sum(grads[1])), w)), "through output 1")

	// A further output has a value only after the op has run.
	require.ErrorContains(t, testutil.Err(grads[1].Op().Do(nil)), "before the op has run")
}

// TestSpecsOfNodes: the properties of a node that a planner reads.
func TestSpecsOfNodes(t *testing.T) {
	g := G.NewGraph()
	x, w := normal("x", 1, 2, 3).Node(g, tensor.Float64), normal("w", 2, 3).Node(g, tensor.Float64)
	y := testutil.Must(ops.RMSNorm(x, w, 1e-6))(t)
	grads := testutil.Must(y.Op().(G.SDOp).SymDiff(G.Nodes{x, w}, y, x))(t)

	s, ok := spec.SpecOf(grads[0].Op())
	require.True(t, ok)
	require.Equal(t, norm.RMSNormGrad{Eps: 1e-6}, s)
	X := spec.Operand{Dtype: tensor.Float64, Shape: tensor.Shape{2, 3}}
	W := spec.Operand{Dtype: tensor.Float64, Shape: tensor.Shape{3}}
	require.Equal(t, []spec.Operand{X, W}, spec.OutputsOf(grads[0].Op()))
	index, ok := spec.OutputIndex(grads[1].Op())
	require.True(t, ok)
	require.Equal(t, 1, index)
	require.Equal(t, "float64 (2, 3)", X.String())
	require.Equal(t, 48, X.Bytes())

	for _, op := range []G.Op{nil, grads[1].Op(), G.Must(G.Tanh(x)).Op()} {
		_, ok = spec.SpecOf(op)
		require.False(t, ok)
		require.Nil(t, spec.OutputsOf(op))
	}
	_, ok = spec.OutputIndex(y.Op())
	require.False(t, ok)
}

func TestApplyErrors(t *testing.T) {
	g, other := G.NewGraph(), G.NewGraph()
	x := normal("x", 1, 2, 3).Node(g, tensor.Float64)
	foreign := normal("y", 1, 2, 3).Node(other, tensor.Float64)
	var v G.Value
	statement := G.Read(x, &v)
	shapeless := G.NewTensor(g, tensor.Float64, 2, G.WithName("shapeless"))
	integers := G.NewTensor(g, tensor.Int, 2, G.WithShape(2, 3), G.WithName("integers"))
	for _, c := range []struct {
		in  []*G.Node
		err string
	}{
		{nil, "add: no inputs"},
		{[]*G.Node{nil}, "input 0 is nil"},
		{[]*G.Node{x, nil}, "input 1 is nil"},
		{[]*G.Node{x, foreign}, "input 1 (y)"},
		{[]*G.Node{statement}, "of type <nil>"},
		{[]*G.Node{x, shapeless}, "input 1 (shapeless)"},
		{[]*G.Node{integers}, "x 0 is int"},
	} {
		n, err := ops.Add(c.in...)
		require.ErrorContains(t, err, c.err)
		require.Nil(t, n)
	}

	require.ErrorContains(t, testutil.Err(ops.SiLU(G.NewConstant(2.0))), "belongs to no graph")
	for _, none := range []spec.Spec{nil, (*pointwise.SiLU)(nil)} {
		require.ErrorContains(t, testutil.Err(spec.Apply(none, x)), "no spec")
	}

	y := testutil.Must(ops.SiLU(x))(t)
	for _, c := range []struct {
		node  *G.Node
		index int
		err   string
	}{
		{nil, 1, "ops: output of a nil node"}, {x, 1, "not an op of this package"},
		{y, 0, "ops: silu: no output 0 among 1"}, {y, 1, "ops: silu: no output 1 among 1"},
		{y, -1, "ops: silu: no output -1 among 1"},
	} {
		require.ErrorContains(t, testutil.Err(spec.Output(c.node, c.index)), c.err)
	}
}

// TestConstantsAsInputs: a constant joins the graph of the other inputs, at any position among them.
func TestConstantsAsInputs(t *testing.T) {
	constant := func(a array) *G.Node {
		n := a.Node(G.NewGraph(), tensor.Float64)
		return G.NewConstant(n.Value(), G.WithName("constant "+a.Name))
	}
	gates, a, b := normal("gates", 1, 1, 2, 3, 2), normal("a", 2, 1, 2, 3, 4), normal("b", 3, 1, 2, 3, 4)
	weights := normal("weights", 4, 1, 2, 3, 4)
	want := ref.GatedSum(gates.Tensor(), a.Tensor(), b.Tensor())
	_, grads := ref.GatedSumGrad(gates.Tensor(), weights.Tensor(), a.Tensor(), b.Tensor())
	for vm := range vms {
		res := runGraph(t, vm, tensor.Float64, func(in []*G.Node) (*G.Node, error) {
			return ops.GatedSum(constant(gates), in[0], constant(b))
		}, weights.Floats, a)
		testutil.Within(t, vm+", output", res.out, want.Data, 1e-12)
		testutil.Within(t, vm+", gradient", res.grads["a"], grads[0].Data, 1e-12)
	}

	// Gorgonia would merge the second constant with the first, which has the same printed form.
	g := G.NewGraph()
	weight := normal("weight", 5, 3, 2).Node(g, tensor.Float64)
	ids := func(at int) *G.Node {
		x := make([]int32, 200)
		x[at] = 1
		return G.NewConstant(tensor.New(tensor.WithShape(2, 100), tensor.WithBacking(x)))
	}
	require.NoError(t, testutil.Err(ops.Embedding(weight, ids(60))))
	require.NoError(t, testutil.Err(ops.Embedding(weight, ids(60))))
	require.ErrorContains(t, testutil.Err(ops.Embedding(weight, ids(61))), "name of another constant")
}

// TestFurtherOutputsFollowInputs: each run with new inputs gives new further outputs.
func TestFurtherOutputsFollowInputs(t *testing.T) {
	for vm, machine := range vms {
		t.Run(vm, func(t *testing.T) {
			g := G.NewGraph()
			x, w := normal("x", 1, 4, 3), normal("w", 2, 3)
			xn, wn := x.Node(g, tensor.Float64), w.Node(g, tensor.Float64)
			cost := G.Must(G.Sum(testutil.Must(ops.RMSNorm(xn, wn, 1e-3))(t)))
			grads := testutil.Must(G.Grad(cost, xn, wn))(t)
			var dx, dw G.Value
			G.Read(grads[0], &dx)
			G.Read(grads[1], &dw)
			m := testutil.Closing(machine(g))(t)
			for run := range 3 {
				x := normal("x", uint64(10+run), 4, 3)
				require.NoError(t, G.Let(xn, tensor.New(tensor.WithShape(4, 3), tensor.WithBacking(append([]float64{},
					x.Floats...)))))
				require.NoError(t, m.RunAll())
				ones := ref.New(4, 3)
				for i := range ones.Data {
					ones.Data[i] = 1
				}
				wantX, wantW := ref.RMSNormGrad(x.Tensor(), w.Tensor(), ones, 1e-3)
				testutil.Within(t, fmt.Sprint("dx of run ", run), testutil.Floats(t, dx.Data()), wantX.Data, 1e-12)
				testutil.Within(t, fmt.Sprint("dw of run ", run), testutil.Floats(t, dw.Data()), wantW.Data, 1e-12)
				m.Reset()
			}
		})
	}
}
