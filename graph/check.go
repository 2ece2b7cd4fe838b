package graph

import (
	"errors"
	"fmt"
	"strings"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// CheckGraph looks for what makes a finished graph compute something else than was written, and returns an error that
// lists the nodes, one a line:
//   - distinct nodes of one hash, which gorgonia's TapeMachine takes for one (Machine does not: it tells nodes by identity);
//   - inputs of one name, which Gorgonia merges where their types and shapes agree too;
//   - nodes without a shape, or with one of another rank than their type;
//   - nodes in an order in which one comes before what it reads, or which the graph does not find by their id, as
//     happens after ExprGraph.RemoveNode.
//
// NewMachine itself refuses graphs with the last two.
func CheckGraph(g *G.ExprGraph) error {
	if g == nil {
		return errors.New("graph: check: nil graph")
	}
	var problems []string
	report := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	checkStructure(g, report)
	hashes, names := map[uint32]*G.Node{}, map[string]*G.Node{}
	for _, n := range g.AllNodes() {
		if n.Type() == nil { // a statement
			continue
		}
		if o, ok := hashes[n.Hashcode()]; ok {
			report("%s and %s have one hash, %#x", describe(o), describe(n), n.Hashcode())
		}
		hashes[n.Hashcode()] = n
		if n.Op() != nil {
			continue
		}
		if o, ok := names[n.Name()]; ok {
			report("%s and %s have one name", describe(o), describe(n))
		}
		names[n.Name()] = n
	}
	return checkError(problems)
}

func checkError(problems []string) error {
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("graph: check: %s", strings.Join(problems, "\n\t"))
}

// checkStructure reports what no machine can run.
func checkStructure(g *G.ExprGraph, report func(format string, args ...any)) {
	seen := map[*G.Node]bool{}
	for _, n := range g.AllNodes() {
		if g.Node(n.ID()) != n {
			report("%s is not found by its id", describe(n))
			continue
		}
		for _, c := range inputsOf(g, n) {
			if !seen[c] {
				report("%s comes before its input %s", describe(n), describe(c))
			}
		}
		seen[n] = true
		if n.Type() == nil {
			continue
		}
		switch t := n.Type().(type) {
		case G.TensorType:
			switch s := n.Shape(); {
			case s.Dims() == 0 && t.Dims > 0:
				report("%s has no shape", describe(n))
			case s.Dims() != t.Dims && !(t.Dims == 1 && s.IsVector()): // Gorgonia's vectors may be columns or rows
				report("%s has rank %d in its type and shape %v", describe(n), t.Dims, s)
			}
		case tensor.Dtype:
			if s := n.Shape(); !s.IsScalar() {
				report("%s is a scalar in its type and has shape %v", describe(n), s)
			}
		default:
			report("%s has the type %v, want a tensor or a scalar", describe(n), t)
		}
	}
}

// inputsOf returns the nodes that n reads, in order and with repetitions.
func inputsOf(g *G.ExprGraph, n *G.Node) G.Nodes {
	it := g.From(n.ID())
	if it == nil || it.Len() <= 0 {
		return nil
	}
	nodes := make(G.Nodes, 0, it.Len())
	for it.Next() {
		nodes = append(nodes, it.Node().(*G.Node))
	}
	return nodes
}

// describe names a node in errors: an input by its name, another one by its op, with id and shape.
func describe(n *G.Node) string {
	switch {
	case n == nil:
		return "nil node"
	case n.Op() == nil:
		return fmt.Sprintf("input %q (node %d, shape %v)", n.Name(), n.ID(), n.Shape())
	}
	return fmt.Sprintf("op %s (node %d, shape %v)", opName(n.Op()), n.ID(), n.Shape())
}
