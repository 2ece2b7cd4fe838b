package graph

import (
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// plan is the form of a graph that a machine runs: a list of steps over values (planValue). newPlan makes it, pass by pass.
// Afterwards only the addresses in the values' cells (arg.Buf) change.
type plan struct {
	backend  Backend
	device   Device
	policy   Policy
	half     tensor.Dtype // type of activations; the zero value means the types of the graph
	constant G.Nodes      // the inputs of WithConstantInputs

	order       *order
	values      []*planValue
	valueByNode map[*G.Node]*planValue
	reads       []read
	steps       []*step

	halfCopies    halfCopies     // by setTypes
	prologue      int            // by setTypes: number of first steps that cast inputs and constants
	removedCopies G.Nodes        // by fuse: copies without a step, because their readers read the original
	unfused       map[string]int // by fuse: number of refusals by the backend, by rule and reason
	contiguous    [][]*planValue // by joinWeights: lists of values that are contiguous in memory

	arena, arenaMin, workspace int // by layout: bytes
}

// kind says where the numbers of a value come from.
type kind int

const (
	fromInput    kind = iota // node.Value() at the start of a run
	fromConstant             // node.Value() of a constant
	fromKernel               // a kernel writes it to the arena; before dispatch: any result
	fromHost                 // the Do of an op returns it
)

// planValue is the value of a node, a further output of an op, or a cast: its type and shape, and where it lies. The gorgonia.Value that
// it has in a run is in state.
type planValue struct {
	id       int     // index in plan.values
	node     *G.Node // the node that has this value; nil for a further output or a cast that no node shows
	name     string  // for errors
	kind     kind
	arg      spec.Arg // type and shape, and the cell that points at its memory on the device
	keep     bool     // it stays in memory to the end of a run and its node shows it then
	persists bool     // it stays in memory from run to run
	wrt      G.Nodes  // the inputs whose derivative it is

	constant bool // an input of WithConstantInputs, or a cast of one
	boundary bool // a boundary of WithRecompute: it stays in memory for the backward pass
	updated  bool // by markUpdated: a step writes to it

	kernelReads, hostReads bool         // by dispatch: who reads it; a gorgonia.Read is a reader on the host
	checks                 []valueCheck // by dispatch: ops that check its numbers if these come from the host
	last                   int          // by layout: index of the last step that reads it; the number of steps if it is kept
	follows                *planValue   // by joinWeights: the value directly before it in memory; nil: it may lie anywhere
	region                 *region      // by layout: its place in the arena, nil if it has none
}

// step is one instruction: a kernel, or an op that runs on the host.
type step struct {
	node    *G.Node   // the node that it computes, for a fused step one of them; for a cast, the node whose value it casts
	op      G.Op      // of the node; nil for a step that a pass has added, such as a cast or a fused step
	spec    spec.Spec // nil for an op that is not of package ops
	in, out []*planValue

	rule     string  // by fuse: the rule that made it
	replaces G.Nodes // by fuse: the nodes whose steps it replaces

	recomputed bool     // by recomputeBackward: the step repeats one of the forward pass
	phase      sumPhase // by addGradSums: in which runs it runs

	implementation string // by dispatch, as the fields below
	kernel         Kernel // nil for an op on the host
	cost           Cost
	refused        []Refusal
	host           hostCall // how to run an op on the host

	dead []*planValue // by layout: values on the host that nothing reads after the step
}

// valueCheck is an op that checks the numbers of one of its inputs, such as indices.
type valueCheck struct {
	spec spec.Checked
	in   []spec.Operand
	node *G.Node
}

// read is a gorgonia.Read: what it reads, and its target.
type read struct {
	from *planValue
	into *G.Value
}

// newPlan makes the plan of g, pass by pass.
func newPlan(g *G.ExprGraph, o options) (*plan, error) {
	p, err := emptyPlan(o)
	if err != nil {
		return nil, err
	}
	for _, pass := range []func() error{
		func() error { return p.lower(g, o.keep) },  // the graph's nodes become steps over values
		func() error { return p.markBoundaries(o) }, // what stays in memory for the backward pass
		p.setTypes, // each value gets its type, casts are steps
		p.fuse,     // one step replaces several
		func() error { return p.recomputeBackward(o) }, // the backward pass computes activations again
		func() error { return p.addGradSums(o) },       // derivatives are summed over runs
		p.joinWeights,                                  // weights that a product reads as one matrix get adjacent places
		p.dispatch,                                     // each step gets an implementation
		p.markUpdated,                                  // inputs that steps write to are marked
		p.layout,                                       // each value gets its place in the arena
	} {
		if err := pass(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// emptyPlan returns a plan without steps.
func emptyPlan(o options) (*plan, error) {
	p := &plan{backend: o.backend, device: o.backend.Device(), policy: *o.policy, constant: o.constant, valueByNode: map[*G.Node]*planValue{}, unfused: map[string]int{}}
	var err error
	if p.half, err = o.precision.half(); err != nil {
		return nil, err
	}
	if err := o.precision.check(p.device); err != nil {
		return nil, err
	}
	if a := p.device.Alignment; a < 8 || a&(a-1) != 0 {
		return nil, fmt.Errorf("alignment of the device is %d, want a power of two, at least 8", a)
	}
	if o.watches() {
		p.policy.Unfused = []string{UnfusedAll} // the result of each op is checked
	}
	return p, p.policy.check()
}

// hasInputDerivatives reports whether some value is a derivative of an input, as in a plan for training.
func (p *plan) hasInputDerivatives() bool {
	return slices.ContainsFunc(p.values, func(v *planValue) bool { return len(v.wrt) > 0 })
}

// newValue adds a value with a cell of its own. The node may be nil.
func (p *plan) newValue(n *G.Node, name string, k kind, o spec.Operand) *planValue {
	v := &planValue{id: len(p.values), node: n, name: name, kind: k, arg: spec.Arg{Operand: o, Buf: new(cpu.Buf)}}
	v.constant = k == fromInput && slices.Contains(p.constant, n)
	p.values = append(p.values, v)
	return v
}

// call describes a step to a backend.
func (p *plan) call(s *step) Call {
	call := Call{Op: s.op, Spec: s.spec, In: typesOf(s.in), Out: typesOf(s.out), Policy: p.policy}
	for _, v := range s.in {
		call.Constant = append(call.Constant, v.constant)
	}
	for _, list := range [][]*planValue{s.in, s.out} {
		for i, v := range list {
			call.Follows = append(call.Follows, i > 0 && v.follows == list[i-1])
		}
	}
	return call
}

func typesOf(values []*planValue) []spec.Operand {
	list := make([]spec.Operand, len(values))
	for i, v := range values {
		list[i] = v.arg.Operand
	}
	return list
}

// forNode calls f and adds the name of the node to its error. A panic of an op becomes an error, too.
func forNode(n *G.Node, f func() error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", describe(n), err)
		}
	}()
	defer recoverAsError(&err)
	return f()
}

// recoverAsError turns a panic into an error. Use it with defer.
func recoverAsError(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("panic: %v", r)
	}
}
