package graph

import (
	"errors"
	"fmt"

	G "gorgonia.org/gorgonia"
)

// CheckGraph looks for faults that make a finished graph compute something else than was written. Its error lists the
// nodes, one a line:
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
