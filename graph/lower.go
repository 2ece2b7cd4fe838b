package graph

import (
	"fmt"
	"reflect"
	"slices"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
)

// lower makes values of the nodes of g and steps of their ops, in topological order, and marks the values that are
// kept.
func (p *plan) lower(g *G.ExprGraph, keep G.Nodes) (err error) {
	if p.order, err = checkedOrder(g); err != nil {
		return err
	}
	if err = p.separateDerivs(g); err != nil {
		return err
	}
	writers := map[*planValue]*step{}
	for _, n := range p.order.nodes {
		if err := forNode(n, func() error { return p.lowerNode(n, writers) }); err != nil {
			return err
		}
	}
	p.keepRowsApart()
	p.keepWanted()
	for _, n := range keep {
		v, ok := p.valueByNode[n]
		if _, in := p.order.inputs[n]; !ok && in && n.Type() == nil { // a statement such as G.Read has no value
			continue
		}
		if !ok {
			return fmt.Errorf("WithKeep: %s is not in the graph", describe(n))
		}
		v.keep, v.small = true, false
	}
	for _, n := range p.constant {
		if v, ok := p.valueByNode[n]; !ok || v.kind != fromInput {
			return fmt.Errorf("WithConstantInputs: %s is not an input of the graph", describe(n))
		}
	}
	return nil
}

// keepRowsApart makes the linear layers of a plan that decodes compute each row by itself, so that the bits of a
// sequence do not depend on the sequences in other slots.
func (p *plan) keepRowsApart() {
	decodes := func(s *step) bool { _, ok := s.spec.(decode.Step); return ok }
	if !slices.ContainsFunc(p.steps, decodes) {
		return
	}
	for _, s := range p.steps {
		if op, ok := s.spec.(linear.Linear); ok {
			op.Dots = true
			s.spec = op
		}
	}
}

// lowerNode adds the node's value and its step, if it has one.
func (p *plan) lowerNode(n *G.Node, writers map[*planValue]*step) error {
	var in []*planValue
	for _, c := range p.order.inputs[n] {
		in = append(in, p.valueByNode[c])
	}
	if n.Type() == nil && n.Op() != nil {
		return p.addStatement(n.Op(), in)
	}
	k := fromKernel
	switch {
	case n.Op() == nil:
		k = fromInput
	case isConstant(n):
		k = fromConstant
	default:
		if i, ok := spec.OutputIndex(n.Op()); ok && len(in) == 1 {
			if w := writers[in[0]]; w != nil && i < len(w.out) {
				v := w.out[i]
				v.node, v.name = n, describe(n)
				p.valueByNode[n] = v
				return nil
			}
			return fmt.Errorf("%s has no output %d", in[0].name, i)
		}
	}
	v := p.newValue(n, describe(n), k, spec.Operand{Dtype: n.Dtype(), Shape: n.Shape()})
	p.valueByNode[n] = v
	if k != fromKernel {
		return nil
	}
	s := &step{node: n, op: n.Op(), in: in, out: []*planValue{v}}
	var ok bool
	if s.spec, ok = spec.SpecOf(n.Op()); ok {
		for i, o := range spec.OutputsOf(n.Op())[1:] {
			s.out = append(s.out, p.newValue(nil, fmt.Sprintf("output %d of %s", i+1, v.name), fromKernel, o))
		}
	}
	writers[v] = s
	p.steps = append(p.steps, s)
	if !p.device.Host {
		return nil
	}
	for _, v := range s.out { // check them before a kernel makes tables for its operands
		if err := memory.CheckTotal(v.arg.Operand.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// addStatement adds a statement, a node without a value. Gorgonia does not export the ops of its statements. The op of
// gorgonia.Read has one field, the target. gorgonia.Set does nothing, as in Gorgonia's own VMs.
func (p *plan) addStatement(op G.Op, in []*planValue) error {
	v := reflect.ValueOf(op)
	switch name := gorgoniaType(op); {
	case name == "letOp":
		return nil
	case name == "readOp" && len(in) == 1 && v.NumField() == 1 && v.Field(0).Type() == reflect.TypeFor[*G.Value]():
		in[0].keep, in[0].hostReads = true, true
		p.reads = append(p.reads, read{in[0], (*G.Value)(unsafe.Pointer(v.Field(0).Pointer()))})
		return nil
	}
	return fmt.Errorf("unknown statement of type %T", op)
}

// isConstant reports whether n is a constant of Gorgonia. The op of a constant has its value.
func isConstant(n *G.Node) bool {
	_, ok := n.Op().(interface{ Value() G.Value })
	return ok && n.Value() != nil
}

// separateDerivs gives inputs derivatives of their own. gorgonia.Grad may have given several inputs one node, or a
// constant that the whole process shares. separateDerivs then adds copies to the graph and makes them the derivatives.
func (p *plan) separateDerivs(g *G.ExprGraph) (err error) {
	var wrt, grads, copies G.Nodes
	for _, n := range p.order.nodes {
		d := n.Deriv()
		if n.Op() != nil || d == nil {
			continue
		}
		if _, ok := p.order.inputs[d]; ok || isConstant(d) {
			wrt, grads = append(wrt, n), append(grads, d)
		}
	}
	own := slices.Clone(grads)
	if err := separate(own, wrt); err != nil {
		return err
	}
	for i, d := range own {
		if d != grads[i] {
			// A TapeMachine with BindDualValues adds up the values of all nodes that have been set as derivative of an input.
			for j, of := range grads[i].DerivOf() {
				if of == wrt[i] && !isConstant(grads[i]) {
					grads[i].DerivOf()[j] = grads[i]
				}
			}
			G.SetDerivOf(d, wrt[i])
			copies = append(copies, d)
		}
	}
	if copies != nil {
		p.order, err = orderOf(g, copies...)
	}
	return err
}

// smallValue bounds the bytes of a value that is kept because its memory is not worth using again.
const smallValue = 4 << 10

// keepWanted marks the values that the graph itself asks for: roots, scalars and derivatives of inputs. On the host it also
// marks small results of Gorgonia's own ops, so that nodes of a small graph show them as after a TapeMachine's run.
func (p *plan) keepWanted() {
	isRead := map[*G.Node]bool{}
	for _, inputs := range p.order.inputs {
		for _, c := range inputs {
			isRead[c] = true
		}
	}
	for _, n := range p.order.nodes {
		v, ok := p.valueByNode[n]
		if !ok {
			continue
		}
		_, ours := spec.SpecOf(n.Op())
		switch {
		case !isRead[n] || n.IsScalar() || slices.Contains(p.order.roots, n):
			v.keep, v.small = true, false
		case !v.keep && p.device.Host && n.Op() != nil && !ours && v.arg.Operand.Bytes() <= smallValue:
			v.keep, v.small = true, true
		}
		if n.Op() == nil && n.Deriv() != nil {
			if d, ok := p.valueByNode[n.Deriv()]; ok {
				d.keep, d.small, d.wrt = true, false, append(d.wrt, n)
			}
		}
	}
}

// separate replaces the gradient of an input by a copy if it is a constant, an input, or the gradient of another input,
// too: Gorgonia's solvers zero a gradient after use.
func separate(grads, wrt G.Nodes) (err error) {
	defer recoverAsError(&err)
	owner := map[*G.Node]*G.Node{}
	for i, n := range wrt {
		d := grads[i]
		if n.Op() != nil {
			continue
		}
		if first, ok := owner[d]; !ok && d.Op() != nil && !isConstant(d) || ok && first == n {
			owner[d] = n
			continue
		}
		if grads[i], err = spec.Apply(pointwise.AddGrad{Sum: n.ID()}, d); err != nil {
			return fmt.Errorf("gradient of %s: %w", describe(n), err)
		}
	}
	return nil
}
