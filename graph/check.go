package graph

import (
	"errors"
	"fmt"
	"strings"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// CheckGraph looks for faults that make a finished graph compute something else than was written. Its error lists the nodes,
// one a line:
//   - different nodes of one hash, which gorgonia's TapeMachine takes for one (Machine does not: it tells nodes by identity);
//   - inputs of one name, which Gorgonia merges if their types and shapes agree, too;
//   - nodes without a shape, or with a shape of another rank than their type;
//   - nodes that read a node which Gorgonia has removed, or themselves.
//
// NewMachine and Grad refuse graphs with the last two faults.
func CheckGraph(g *G.ExprGraph) error {
	if g == nil {
		return errors.New("graph: check: nil graph")
	}
	o, err := orderOf(g)
	if err != nil {
		return fmt.Errorf("graph: check: %w", err)
	}
	problems := o.problems()
	report := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	hashes, names := map[uint32]*G.Node{}, map[string]*G.Node{}
	for _, n := range o.nodes {
		if n.Type() == nil { // a statement
			continue
		}
		if other, ok := hashes[n.Hashcode()]; ok {
			report("%s and %s have the same hash, %#x", describe(other), describe(n), n.Hashcode())
		}
		hashes[n.Hashcode()] = n
		if n.Op() != nil {
			continue
		}
		if other, ok := names[n.Name()]; ok {
			report("%s and %s have the same name", describe(other), describe(n))
		}
		names[n.Name()] = n
	}
	if err := checkError(problems); err != nil {
		return fmt.Errorf("graph: check: %w", err)
	}
	return nil
}

// checkError returns an error that lists the problems, nil if there are none.
func checkError(problems []string) error {
	if len(problems) == 0 {
		return nil
	}
	return errors.New(strings.Join(problems, "\n\t"))
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

// describe names a node in errors, with id and shape: an input by its name, any other node by its op.
func describe(n *G.Node) string {
	switch {
	case n == nil:
		return "nil node"
	case n.Op() == nil:
		return fmt.Sprintf("input %q (node %d, shape %v)", n.Name(), n.ID(), n.Shape())
	}
	return fmt.Sprintf("op %s (node %d, shape %v)", opName(n.Op()), n.ID(), n.Shape())
}
