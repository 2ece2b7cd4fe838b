package graph

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"gorgonia.org/tensor"

	G "gorgonia.org/gorgonia"
)

// order lists what a graph computes. It does not use the graph's own order or index: the index by id is wrong after
// Gorgonia's stabilisation has removed a node, and a subgraph lists its nodes by address.
type order struct {
	nodes  G.Nodes             // each after its inputs, otherwise by id
	inputs map[*G.Node]G.Nodes // what a node reads, in order and with repetitions
	roots  G.Nodes             // what a subgraph was made for; nil for a whole graph
}

// orderOf sorts the nodes of g, those of more, and all nodes that these read: a subgraph may lack some of them.
func orderOf(g *G.ExprGraph, more ...*G.Node) (*order, error) {
	var all G.Nodes
	o := &order{inputs: make(map[*G.Node]G.Nodes, len(g.AllNodes()))}
	add := func(n *G.Node) {
		if _, ok := o.inputs[n]; !ok {
			o.inputs[n] = nil
			all = append(all, n)
		}
	}
	for _, n := range slices.Concat(g.AllNodes(), more) {
		add(n)
	}
	for from := 0; from < len(all); {
		const lookups = 128 // a graph finds a node by its id in linear time
		some := all[from:min(from+lookups, len(all))]
		from += len(some)
		// Subgraph sorts the list in place, so pass a clone. It treats a single node in another way, so pass that node twice.
		index := g.Subgraph(append(slices.Clone(some), some[0])...)
		for _, n := range some {
			if index.Node(n.ID()) != n {
				return nil, fmt.Errorf("%s is not found by its id", describe(n))
			}
			for it := index.From(n.ID()); it.Next(); {
				c := it.Node().(*G.Node)
				add(c)
				o.inputs[n] = append(o.inputs[n], c)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b *G.Node) int { return cmp.Compare(a.ID(), b.ID()) })
	visited := make(map[*G.Node]bool, len(all)) // false while its inputs are being visited
	for _, n := range all {
		if err := o.appendAfterInputs(n, visited); err != nil {
			return nil, err
		}
	}
	if len(all) > 0 && all[0].Graph() != g {
		o.roots = g.Roots()
	}
	return o, nil
}

// appendAfterInputs appends n to the nodes, after its inputs.
func (o *order) appendAfterInputs(n *G.Node, visited map[*G.Node]bool) error {
	if done, ok := visited[n]; ok {
		if !done {
			return fmt.Errorf("%s is its own input", describe(n))
		}
		return nil
	}
	visited[n] = false
	for _, c := range o.inputs[n] {
		// Gorgonia uses the memory of a node that its stabilisation has removed for the next node, even if another node reads
		// it.
		if c.ID() > n.ID() && hashOf(n) != n.Hashcode() {
			return fmt.Errorf("an input of %s has been removed by Gorgonia's stabilisation, and %s has taken its place", describe(n), describe(c))
		}
		if err := o.appendAfterInputs(c, visited); err != nil {
			return err
		}
	}
	visited[n] = true
	o.nodes = append(o.nodes, n)
	return nil
}

// hashOf computes the node's hash again. Gorgonia computed it when the node was made.
func hashOf(n *G.Node) uint32 {
	h := fnv.New32a()
	n.WriteHash(h)
	return h.Sum32()
}

// checkedOrder sorts g and refuses what no machine can run.
func checkedOrder(g *G.ExprGraph) (*order, error) {
	o, err := orderOf(g)
	if err != nil {
		return nil, err
	}
	return o, checkError(o.problems())
}

// problems describes the nodes whose type or shape no machine can run.
func (o *order) problems() (problems []string) {
	report := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	for _, n := range o.nodes {
		switch t := n.Type().(type) {
		case nil:
			if n.Op() == nil {
				report("%s has no type: Gorgonia's stabilisation has removed the node, and another one still reads it", describe(n))
			}
		case G.TensorType:
			switch s := n.Shape(); {
			case s.Dims() == 0 && t.Dims > 0:
				report("%s has no shape", describe(n))
			case s.Dims() != t.Dims && !(t.Dims == 1 && s.IsVector()): // Gorgonia's vectors may be columns or rows
				report("%s has rank %d by its type, but shape %v", describe(n), t.Dims, s)
			}
		case tensor.Dtype:
			if s := n.Shape(); !s.IsScalar() {
				report("%s is a scalar by its type, but has shape %v", describe(n), s)
			}
		default:
			report("%s has the type %v, want a tensor or a scalar", describe(n), t)
		}
	}
	return problems
}

// checkError returns an error that lists the problems, nil if there are none.
func checkError(problems []string) error {
	if len(problems) == 0 {
		return nil
	}
	return errors.New(strings.Join(problems, "\n\t"))
}
