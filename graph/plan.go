package graph

import (
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/collective"
)

// plan is the form of a graph that a machine runs: a list of steps over values (planValue). newPlan makes it, pass by
// pass. Afterwards only the addresses in the values' cells (arg.Buf) change.
type plan struct {
	backend  Backend
	device   Device
	policy   Policy
	half     tensor.Dtype // type of activations; the zero value means the types of the graph
	constant G.Nodes      // the inputs of WithConstantInputs
	group    Group        // nil for none, and for one of one rank
	sharded  bool         // WithShardedStates, in a group

	order       *order
	values      []*planValue
	valueByNode map[*G.Node]*planValue
	reads       []read
	steps       []*step

	owners        map[*planValue]int // by addReductions, of gradients: the rank that reduces them
	update        *update            // by addUpdate: nil without WithOptimizer
	halfCopies    halfCopies         // by setTypes
	prologue      int                // by setTypes: number of first steps that cast inputs and constants
	removedCopies G.Nodes            // by fuse: copies without a step, because their readers read the original
	unfused       map[string]int     // by fuse: number of refusals by the backend, by rule and reason
	contiguous    [][]*planValue     // by joinWeights: lists of values that are contiguous in memory

	arena, arenaMin    int // by layout: bytes
	workspace, ownWork int // by dispatch: bytes of work memory that kernels share, and that they have to themselves
}

// kind says where the numbers of a value come from.
type kind int

const (
	fromInput    kind = iota // node.Value() at the start of a run
	fromConstant             // node.Value() of a constant
	fromKernel               // a kernel writes it to the arena; before dispatch: any result
	fromHost                 // the Do of an op returns it
)

// planValue is the value of a node, a further output of an op, or a cast: its type and shape, and where it lies. The
// gorgonia.Value that it has in a run is in state.
type planValue struct {
	id       int     // index in plan.values
	node     *G.Node // the node that has this value; nil for a further output or a cast that no node shows
	name     string  // for errors
	kind     kind
	arg      spec.Arg // type and shape, and the cell that points at its memory on the device
	keep     bool     // it stays in memory to the end of a run and its node shows it then
	small    bool     // it is kept for no other reason
	persists bool     // it stays in memory from run to run
	wrt      G.Nodes  // the inputs whose derivative it is

	constant bool // an input of WithConstantInputs, or a cast of one
	boundary bool // a boundary of WithRecompute: it stays in memory for the backward pass
	updated  bool // by markUpdated: a step writes to it
	trained  bool // by addUpdate: a weight of WithOptimizer

	updateOnly bool // only the steps of the update read it

	kernelReads, hostReads bool         // by dispatch: who reads it; a gorgonia.Read is a reader on the host
	checks                 []valueCheck // by dispatch: ops that check its numbers if these come from the host
	// by layout: index of the last step that reads it; the number of steps if it is kept
	last    int
	follows *planValue // by joinWeights: the value directly before it in memory; nil: it may lie anywhere
	region  *region    // by layout: its place in the arena, nil if it has none
}

// step is one instruction: a kernel, or an op that runs on the host.
type step struct {
	node    *G.Node   // the node that it computes, for a fused step one of them; for a cast, the node whose value it casts
	op      G.Op      // of the node; nil for a step that a pass has added, such as a cast or a fused step
	spec    spec.Spec // nil for an op that is not of package ops
	in, out []*planValue

	rule     string  // by fuse: the rule that made it
	replaces G.Nodes // by fuse: the nodes whose steps it replaces

	recomputed bool  // by recomputeBackward: the step repeats one of the forward pass
	phase      phase // by the pass that has added it: in which runs it runs

	side  bool // by dispatch: it runs in the second stream
	joins bool // by layout: it reads what a step in the second stream writes

	implementation string // by dispatch, as the fields below
	kernel         Kernel // nil for an op on the host
	ownWork        int    // offset of its own work memory behind the workspace; -1: it shares the workspace
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

func (p *plan) call(s *step) Call {
	call := Call{Op: s.op, Spec: s.spec, In: typesOf(s.in), Out: typesOf(s.out), Policy: p.policy, Group: p.group}
	for _, v := range s.in {
		call.Constant = append(call.Constant, v.constant)
	}
	_, padded := s.spec.(collective.Collective)
	for _, list := range [][]*planValue{s.in, s.out} {
		for i, v := range list {
			call.Adjacent = append(call.Adjacent, i > 0 && v.follows == list[i-1] &&
				(padded || list[i-1].arg.Operand.Bytes()%p.device.Alignment == 0))
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

// halfCopies are the half-precision copies of inputs. The prologue of a plan casts them; the casts of weights come
// first. A run may skip these casts if the copies are up to date: the weights are constant, or a solver's step has
// written the copies.
type halfCopies struct {
	byInput map[*G.Node]*planValue
	// of weights: inputs with a derivative, which solvers change, and constant inputs; the first steps of the plan
	casts       []*step
	allConstant bool // there are such casts, and no weight has a derivative
}

// hostCall says how the machine runs an op of Gorgonia. The zero value calls its Do.
type hostCall struct {
	typeAndShape string // of the result: hostMemory keeps memory by it
	prealloc     bool   // call UsePreallocDo, as a TapeMachine does: the Do of some ops computes something else
	elementwise  bool   // the operands have the result's type and shape: call UsePreallocDo or, for one operand, UnsafeDo
	owns         bool   // the result of Do shares memory with no operand
	overwrites   bool   // Do overwrites its operands: give it copies
	ctcGrad      bool   // the result of Do is -Inf after the end of each text: clear it there

	sumAlong []int // if not empty, sum along one of these axes after the other. They are ascending

	byIndices *byIndices     // if not nil, call its do
	own       ownOp          // if not nil, call its do
	evalOnly  *G.BatchNormOp // if not nil, only if this op is in evaluation
}

// region is the place of a value in the arena. It is taken from the step first, which writes the value, to the step
// last, which is the last to read it, both included.
type region struct {
	bytes       int
	first, last int
	offset      int // from placeRegions
}

// phase says in which runs a step runs.
type phase int

const (
	always       phase = iota
	beginsSum          // in runs that begin the sums: it writes the derivative to its sum
	continuesSum       // in all other runs: it adds the derivative to its sum
	reduces            // in a Step: it averages gradients over ranks
	updates            // in a Step, behind all other steps: it changes weights
	compares           // in some Steps, behind the updates: it sums weights, to compare them with other ranks
)

// byIndices computes gorgonia.ByIndices and its gradient. Package tensor v0.9.24 computes wrong results along an axis
// in the middle, for inputs of one element, and for some gradients along the last axis. An index outside the axis
// selects element 0, as it does there: Gorgonia's own test has one.
type byIndices struct {
	axis int
	// the result is the gradient of x, and the gradient of the selected elements is an argument between x and the
	// indices
	gradient bool
}

// ownOp computes an op on the host, because Gorgonia v0.9.18 or package tensor v0.9.24 computes it wrongly for some
// operands.
type ownOp interface {
	// do writes the result to y, in row-major order.
	do(y *cpu.Buf, args []G.Value) error
}

// opName returns the name of the step's op: that of its Spec, or how Gorgonia prints it.
func (s *step) opName() string {
	if s.spec != nil {
		return s.spec.Name()
	}
	return opName(s.op)
}
