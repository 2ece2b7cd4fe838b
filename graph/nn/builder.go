// Package nn builds layers as Gorgonia graphs: parameters with their first values, and the layer of Native Sparse
// Attention. Layers and models are written with Builder. Package safetensors keeps values in files; Assign takes them
// from there.
package nn

import (
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Builder adds a layer or a model to a graph. It keeps the first error, see Err. After an error all nodes that it
// returns are nil, so that a model needs no checks in between:
//
//	x = b.Node(ops.SiLU(b.Linear(x, "mlp.w1")))
type Builder struct {
	graph         *G.ExprGraph
	params        map[string]Param
	source        Source
	valuelessType tensor.Dtype // set by NewShapeBuilder: the type of parameters without values
	nodes         map[string]*G.Node
	learnables    G.Nodes
	err           error
}

// NewBuilder returns a builder for g and the given parameters. src gives their values. Neither g nor src may be nil.
func NewBuilder(g *G.ExprGraph, params []Param, src Source) *Builder {
	b := &Builder{graph: g, params: make(map[string]Param, len(params)), source: src, nodes: map[string]*G.Node{}}
	if g == nil || src == nil {
		b.err = errors.New("nn: nil graph or source")
	}
	for _, p := range params {
		if _, twice := b.params[p.Name]; twice && b.err == nil {
			b.err = fmt.Errorf("nn: two parameters are called %s", p.Name)
		}
		b.params[p.Name] = p
	}
	return b
}

// NewShapeBuilder returns a builder whose parameters have shapes and the type dt, float32 or float64, but no values. It
// is for graphs that are planned and not run (graph.NewPlan).
func NewShapeBuilder(g *G.ExprGraph, params []Param, dt tensor.Dtype) *Builder {
	b := NewBuilder(g, params, Values(nil))
	b.valuelessType = dt
	if b.err == nil {
		b.err = checkType("parameters", dt)
	}
	return b
}

func checkType(what string, dt tensor.Dtype) error {
	if dt != tensor.Float32 && dt != tensor.Float64 {
		return fmt.Errorf("nn: %s: value of type %s, want float32 or float64", what, value.TypeName(dt))
	}
	return nil
}

// Err returns the first error of the builder's calls.
func (b *Builder) Err() error { return b.err }

// Learnables returns the nodes of the parameters, in the order in which they were added to the graph, for gorgonia.Grad
// and solvers.
func (b *Builder) Learnables() G.Nodes { return b.learnables }

// Node takes what the constructor of an op has returned. It returns n, or nil after an error.
func (b *Builder) Node(n *G.Node, err error) *G.Node {
	if b.err == nil {
		b.err = err
	}
	if b.err != nil {
		return nil
	}
	return n
}

// Apply returns spec.Apply of spec to inputs.
func (b *Builder) Apply(s spec.Spec, inputs ...*G.Node) *G.Node {
	if b.err != nil {
		return nil
	}
	return b.Node(spec.Apply(s, inputs...))
}

// Output returns a further output of the op of n, see spec.Output.
func (b *Builder) Output(n *G.Node, index int) *G.Node {
	if b.err != nil {
		return nil
	}
	return b.Node(spec.Output(n, index))
}

// Param returns the node of the parameter of the given name. The first call adds it to the graph, with the value that
// the source gives. A value of another shape is an error. So is a name that a node of the graph has already: Gorgonia
// merges inputs of one name, type and shape.
func (b *Builder) Param(name string) *G.Node {
	if n := b.nodes[name]; n != nil || b.err != nil {
		return b.Node(n, nil)
	}
	p, ok := b.params[name]
	if !ok {
		return b.Node(nil, fmt.Errorf("nn: no parameter %s", name))
	}
	n := b.Node(b.newParam(p))
	if n != nil {
		b.nodes[name] = n
		b.learnables = append(b.learnables, n)
	}
	return n
}

func (b *Builder) newParam(p Param) (*G.Node, error) {
	if len(b.graph.ByName(p.Name)) > 0 {
		return nil, fmt.Errorf("nn: parameter %s: the graph has a node of that name", p.Name)
	}
	node := func(dt tensor.Dtype, opts ...G.NodeConsOpt) *G.Node {
		return G.NewTensor(b.graph, dt, p.Shape.Dims(), append(opts, G.WithShape(p.Shape...), G.WithName(p.Name))...)
	}
	if b.valuelessType != (tensor.Dtype{}) {
		if _, err := p.elements(); err != nil {
			return nil, err
		}
		return node(b.valuelessType), nil
	}
	v, err := b.source(p)
	switch {
	case err != nil:
		return nil, err
	case v == nil:
		return nil, fmt.Errorf("nn: no value for parameter %s", p.Name)
	case !v.Shape().Eq(p.Shape):
		return nil, fmt.Errorf("nn: parameter %s: value of shape %v, want %v", p.Name, v.Shape(), p.Shape)
	}
	if err := checkType("parameter "+p.Name, v.Dtype()); err != nil {
		return nil, err
	}
	return node(v.Dtype(), G.WithValue(v)), nil
}

// Linear returns ops.Linear of x by the parameter name+".weight", plus name+".bias" if there is one, plus the product of
// x and the parameters of WithLoRA if there are such.
func (b *Builder) Linear(x *G.Node, name string, opts ...ops.LinearOption) *G.Node {
	w, options := b.Param(name+".weight"), opts
	if bias := name + ".bias"; b.params[bias].Name != "" {
		options = append(slices.Clip(opts), ops.WithBias(b.Param(bias)))
	}
	y := b.Node(ops.Linear(x, w, options...))
	if down, up := name+loraDown, name+loraUp; b.params[down].Name != "" {
		inner := b.Node(ops.Linear(x, b.Param(down))) // [...,rank]
		y = b.Node(ops.Add(y, b.Node(ops.Linear(inner, b.Param(up), opts...))))
	}
	return y
}

// RMSNorm returns ops.RMSNorm of x by the parameter name+".weight".
func (b *Builder) RMSNorm(x *G.Node, name string, eps float64) *G.Node {
	return b.Node(ops.RMSNorm(x, b.Param(name+".weight"), eps))
}
