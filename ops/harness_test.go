package ops_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// The table's types, by short names.
type (
	array  = opcases.Array
	sizes  = opcases.Sizes
	branch = opcases.Case
)

func newSizes(B, S, Hq, Hkv, D, Dv int) sizes {
	return sizes{B: B, S: S, Hq: Hq, Hkv: Hkv, D: D, Dv: Dv}
}

func normal(name string, seed uint64, shape ...int) array {
	return opcases.Normal(name, seed, shape...)
}

// build makes a node of the inputs; the tests' view of an op.
type build func(in []*G.Node) (*G.Node, error)

// vms are the machines that every op runs on.
var vms = map[string]func(*G.ExprGraph) (G.VM, error){
	"TapeMachine": func(g *G.ExprGraph) (G.VM, error) { return G.NewTapeMachine(g), nil },
	"Machine":     func(g *G.ExprGraph) (G.VM, error) { return graph.NewMachine(g) },
}

// result is what a test graph computed: the output and, where weights were given, the gradients of sum(out*weights).
type result struct {
	out   []float64
	grads map[string][]float64
}

// evaluate builds the graph in type dt, runs it twice on the named machine and returns the second run's values. With
// weights (as many as the output has elements) it takes the gradients of sum(out*weights) by the inputs of floats.
func evaluate(t testing.TB, vm string, dt tensor.Dtype, b build, weights []float64, inputs ...array) result {
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
	m := testutil.Must(vms[vm](g))(t)
	defer m.Close()
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

// calls runs the Specs of a case by run, which returns the outputs, and returns its plan and all arrays. The dy is the plan's, or
// the one that is given.
func calls(t testing.TB, c opcases.Case, given []array, run func(spec ops.Spec, in []array) []array) (*opcases.Plan, []array) {
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

// compute runs a case without a VM: every Spec on a team of the given number of workers, in poisoned work memory, to poisoned
// outputs between guards. It returns the outputs of the op, the gradient by dy of each input that has one, and dy.
func compute(t testing.TB, c opcases.Case, dt tensor.Dtype, workers int, given ...array) (out, grads []array, dy array) {
	t.Helper()
	plan, arrays := calls(t, c, given, func(spec ops.Spec, in []array) []array {
		return outputsOf(t, workers, spec, dt, in...)
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

// run returns o and lse, and by do dq, dk and dv of an attention op.
func run(t testing.TB, b branch, dt tensor.Dtype, do array) (forward, backward []array) {
	t.Helper()
	forward, backward, _ = compute(t, b, dt, 0, do)
	return forward, backward
}
