package graph

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Grad adds the gradient of cost with respect to each of the nodes wrt to the graph, and returns the gradients' nodes.
// cost is a scalar of float32 or float64. The gradients become the Deriv of the nodes wrt: after a run of any machine
// n.Grad returns the value for an input n. Each input has a gradient node of its own, because Gorgonia's solvers zero a
// gradient after use.
//
// Grad differentiates only ops on a path from wrt to cost. It calls the ops' own SymDiff, except for those of
// Gorgonia's ops whose SymDiff is wrong. One op adds all contributions to the gradient of a node. It is an error if
// cost does not depend on one of wrt, or if an op on the path has no gradient; nodes that have been added by then stay
// in the graph.
//
// Grad may be called again on a graph, for another cost or the same one. A node keeps its first Deriv, as with
// gorgonia.Grad: n.Grad is the gradient of the first cost that has been differentiated by n, never a sum. Later
// gradients are the nodes that the later calls return. For a sum of gradients differentiate the sum of the costs. The
// nodes that gorgonia.Grad itself returns for an input that has a Deriv already may be wrong, those of Grad are right.
func Grad(cost *G.Node, wrt ...*G.Node) (G.Nodes, error) {
	return grad(cost, nil, wrt)
}

// ScaledGrad is Grad of scale times cost. scale is a scalar of the cost's type and graph, and counts as a constant. If
// scale is an input, it can keep gradients within the range of half precision. See optim.AdamW.SetGradScale.
func ScaledGrad(cost, scale *G.Node, wrt ...*G.Node) (G.Nodes, error) {
	if err := cmp.Or(checkScalar("cost", cost), checkScalar("scale", scale)); err != nil {
		return nil, fmt.Errorf("graph: grad: %w", err)
	}
	return grad(cost, scale, wrt)
}

// checkScalar returns an error unless n is a scalar of a graph. A statement has no type, and a constant may have no
// graph.
func checkScalar(role string, n *G.Node) error {
	switch {
	case n == nil:
		return fmt.Errorf("no %s", role)
	case n.Type() == nil:
		return fmt.Errorf("the %s, %s, has no type: statements have none", role, describe(n))
	case !n.IsScalar():
		return fmt.Errorf("the %s, %s, is not a scalar", role, describe(n))
	case n.Graph() == nil:
		return fmt.Errorf("the %s, %s, belongs to no graph", role, describe(n))
	}
	return nil
}

func grad(cost, seed *G.Node, wrt G.Nodes) (G.Nodes, error) {
	grads, err := differentiate(cost, seed, wrt)
	if err == nil {
		err = separate(grads, wrt)
	}
	if err != nil {
		return nil, fmt.Errorf("graph: grad: %w", err)
	}
	for i, n := range wrt {
		if n.Deriv() == nil { // a TapeMachine with BindDualValues would add up what is set
			G.SetDerivOf(grads[i], n)
		}
	}
	return grads, nil
}

// backward is the state of one reverse pass.
type backward struct {
	*order
	depends map[*G.Node]bool    // nodes that depend on wrt, through inputs that have a gradient
	stops   []*G.Node           // ops that depend on wrt and pass no gradient on
	terms   map[*G.Node]G.Nodes // contributions to a node's gradient; propagate replaces them by their sum
}

// differentiate returns the gradients of cost. seed is the derivative to begin with; nil means one.
func differentiate(cost, seed *G.Node, wrt G.Nodes) (G.Nodes, error) {
	if err := checkScalar("cost", cost); err != nil {
		return nil, err
	}
	if len(wrt) == 0 {
		return nil, errors.New("no inputs to differentiate with respect to")
	}
	dt := cost.Dtype()
	if dt != tensor.Float32 && dt != tensor.Float64 {
		return nil, fmt.Errorf("the cost, %s, is of type %v, want float32 or float64", describe(cost), dt)
	}
	if seed != nil && (seed.Dtype() != dt || seed.Graph() != cost.Graph()) {
		return nil, fmt.Errorf("the scale, %s, differs in type or graph from the cost, %s", describe(seed), describe(cost))
	}
	var err error
	b := &backward{depends: map[*G.Node]bool{}, terms: map[*G.Node]G.Nodes{}}
	if b.order, err = checkedOrder(cost.Graph()); err != nil {
		return nil, err
	}
	if seed == nil { // Gorgonia merges constants by their names
		seed = cost.Graph().AddNode(constant(cost, 1, G.WithName("d cost / d cost, of "+dt.String())))
	}
	if _, ok := b.inputs[cost]; !ok {
		return nil, fmt.Errorf("the cost, %s, is not among the nodes of its graph", describe(cost))
	}
	for _, n := range wrt {
		if _, ok := b.inputs[n]; !ok {
			return nil, fmt.Errorf("%s is not in the cost's graph", describe(n))
		}
		b.depends[n] = true
	}
	b.markDependent()
	b.terms[cost] = G.Nodes{seed}
	for _, n := range slices.Backward(b.nodes) {
		if len(b.terms[n]) > 0 {
			if err := b.propagate(n); err != nil {
				return nil, err
			}
		}
	}
	grads := make(G.Nodes, len(wrt))
	for i, n := range wrt {
		if len(b.terms[n]) == 0 {
			return nil, fmt.Errorf("the cost does not depend on %s through ops with a gradient%s", describe(n), b.stopped())
		}
		grads[i] = b.terms[n][0]
	}
	return grads, nil
}

// markDependent fills depends for all nodes after wrt. An op that is no SDOp, or cannot tell which inputs have a
// gradient, as many gradients of Gorgonia's ops cannot, counts as dependent: it is an error only if a gradient arrives
// at it.
func (b *backward) markDependent() {
	for _, n := range b.nodes {
		inputs := b.inputs[n]
		if n.Type() == nil || len(inputs) == 0 {
			continue
		}
		diffs, _ := diffWRT(n, len(inputs))
		reads := false
		for j, c := range inputs {
			if b.depends[c] {
				reads = true
				b.depends[n] = b.depends[n] || diffs == nil || diffs[j]
			}
		}
		if reads && !b.depends[n] {
			b.stops = append(b.stops, n)
		}
	}
}

// propagate adds up the gradient of n and passes it on to the inputs that depend on wrt.
func (b *backward) propagate(n *G.Node) error {
	grad, err := sum(n, b.terms[n])
	if err != nil {
		return fmt.Errorf("sum of the gradients of %s: %w", describe(n), err)
	}
	b.terms[n] = G.Nodes{grad}
	inputs := b.inputs[n]
	wanted := make([]bool, len(inputs))
	for j, c := range inputs {
		wanted[j] = b.depends[c]
	}
	if !slices.Contains(wanted, true) {
		return nil
	}
	diffs, err := diffWRT(n, len(inputs))
	if err != nil {
		return fmt.Errorf("%s has no gradient: %w", describe(n), err)
	}
	if diffs == nil {
		return fmt.Errorf("%s has no gradient", describe(n))
	}
	grads, err := symDiff(n, wanted, inputs, grad)
	if err != nil {
		return fmt.Errorf("gradient of %s: %w", describe(n), err)
	}
	for j, c := range inputs {
		if !diffs[j] || !wanted[j] {
			continue
		}
		if j >= len(grads) || grads[j] == nil {
			return fmt.Errorf("%s returned no gradient for its input %d", describe(n), j)
		}
		if elements(grads[j]) != elements(c) {
			return fmt.Errorf("%s returned a gradient of shape %v for its input %d of shape %v", describe(n),
				grads[j].Shape(), j, c.Shape())
		}
		b.terms[c] = append(b.terms[c], grads[j])
	}
	return nil
}

// symDiff calls the op's SymDiff. For an op with a Spec it adds only the wanted gradients. A panic comes back as an
// error.
func symDiff(n *G.Node, wanted []bool, inputs G.Nodes, grad *G.Node) (grads G.Nodes, err error) {
	defer recoverAsError(&err)
	s, _ := spec.SpecOf(n.Op())
	if d, ok := s.(spec.Differentiable); ok {
		return d.Grad(wanted, inputs, n, grad)
	}
	if grads := corrected(n, inputs, grad); grads != nil {
		return grads, nil
	}
	return n.Op().(G.SDOp).SymDiff(inputs, n, grad)
}

// stopped lists the ops that pass no gradient on, for the error about a node that no gradient has reached.
func (b *backward) stopped() string {
	if len(b.stops) == 0 {
		return ""
	}
	var names []string
	for _, n := range b.stops {
		names = append(names, describe(n))
	}
	return "; these ops pass no gradient on: " + strings.Join(names, ", ")
}

func elements(n *G.Node) int { return spec.Operand{Shape: n.Shape()}.Elements() }

// sum returns the sum of the terms of n's gradient. Terms of Gorgonia's ops may lack axes of length one: if terms
// differ, all are reshaped to n's shape first.
func sum(n *G.Node, terms G.Nodes) (_ *G.Node, err error) {
	defer recoverAsError(&err)
	if len(terms) == 1 {
		return terms[0], nil
	}
	differs := func(t *G.Node) bool { return !t.Type().Eq(terms[0].Type()) || !t.Shape().Eq(terms[0].Shape()) }
	if slices.ContainsFunc(terms[1:], differs) {
		for i, t := range terms {
			if terms[i], err = G.Reshape(t, n.Shape()); err != nil {
				return nil, err
			}
		}
	}
	return ops.Add(terms...)
}
