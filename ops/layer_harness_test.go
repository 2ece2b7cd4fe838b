package ops_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/ops"
)

// layerCase is one op beside attention under test, with the oracle's view of it.
type layerCase struct {
	name   string
	build  build
	inputs []array
	want   *ref.Tensor
	grad   func(dy *ref.Tensor) []*ref.Tensor // of each input; nil for indices
	// large is set for a case of several pieces in every phase: it runs in float32, without a graph.
	large bool
}

// normal returns a normal array whose values are exact in float32.
func normal(name string, seed uint64, shape ...int) array {
	return sizes{}.normal(name, seed, shape...)
}

// dy returns the gradient of the output that a case is tested with.
func (c layerCase) dy() array { return normal("dy", 99, c.want.Shape...) }

// dtypes are the types that a case runs in.
func (c layerCase) dtypes() []tensor.Dtype {
	if c.large {
		return []tensor.Dtype{tensor.Float32}
	}
	return dtypes
}

// graph builds the op and its gradient by dy, and returns the node of the output and those of the gradients.
func (c layerCase) graph(t testing.TB, dt tensor.Dtype) (out *G.Node, grads G.Nodes) {
	t.Helper()
	g := G.NewGraph()
	var in G.Nodes
	for _, a := range c.inputs {
		in = append(in, a.node(g, dt))
	}
	out, err := c.build(in)
	require.NoError(t, err)
	require.Equal(t, c.want.Shape, append([]int{}, out.Shape()...))
	grads, err = out.Op().(G.SDOp).SymDiff(in, out, c.dy().leaf(g, dt))
	require.NoError(t, err)
	require.Len(t, grads, len(in))
	return out, grads
}

// leaf is node, for scalars too.
func (a array) leaf(g *G.ExprGraph, dt tensor.Dtype) *G.Node {
	if len(a.shape) > 0 {
		return a.node(g, dt)
	}
	var v G.Value = G.NewF64(a.floats[0])
	if dt == tensor.Float32 {
		v = G.NewF32(float32(a.floats[0]))
	}
	return G.NewScalar(g, dt, G.WithName(a.name), G.WithValue(v))
}

// compute runs the op and its gradient without a VM: every Spec on a team of the given number of workers, in poisoned
// work memory, to poisoned outputs between guards. It returns the output and the gradient of each input of floats.
func (c layerCase) compute(t testing.TB, dt tensor.Dtype, workers int) (y array, grads []array) {
	t.Helper()
	out, nodes := c.graph(t, dt)
	given := map[string]array{"dy": c.dy()}
	for _, a := range c.inputs {
		given[a.name] = a
	}
	results := map[int64][]array{} // all outputs of a node's op
	g := out.Graph()
	for _, n := range g.AllNodes() {
		var in [][]array // all outputs of each input's op
		for it := g.From(n.ID()); it.Next(); {
			in = append(in, results[it.Node().ID()])
		}
		spec, isSpec := ops.SpecOf(n.Op())
		index, isOutput := ops.OutputIndex(n.Op())
		switch {
		case isSpec:
			var args []array
			for _, all := range in {
				args = append(args, all[0])
			}
			results[n.ID()] = outputsOf(t, workers, spec, dt, args...)
		case isOutput:
			results[n.ID()] = in[0][index : index+1]
		default:
			results[n.ID()] = []array{given[n.Name()]}
		}
	}
	for _, n := range nodes {
		if n == nil {
			continue
		}
		grads = append(grads, results[n.ID()][0])
	}
	return results[out.ID()][0], grads
}

// wantGrads returns the oracle's gradients of the inputs of floats, with their names.
func (c layerCase) wantGrads() (names []string, grads []*ref.Tensor) {
	for i, d := range c.grad(tensorOf(c.dy())) {
		if d != nil {
			names, grads = append(names, c.inputs[i].name), append(grads, d)
		}
	}
	return names, grads
}
