package graph

import (
	"errors"
	"fmt"
	"sync/atomic"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// Machine runs a graph. It is a gorgonia.VM and accepts any ExprGraph, subgraphs included. It runs the graph as it was
// when NewMachine was called.
//
// Each run reads the values that are bound to the graph's inputs at that time; they may differ from those of the run
// before. After a run these nodes have values, so that node.Value and node.Grad work as after a TapeMachine: the
// graph's roots, its scalars, the derivatives of its inputs, nodes that a gorgonia.Read reads, the nodes of WithKeep,
// and on the CPU results of Gorgonia's own ops of at most 4 KiB. Other nodes have no values. The values lie in the
// machine's memory. They are valid until the next RunAll or Close: copy what must last longer. The value that a Read
// gives is on the host. The next run overwrites it, unless the Read's target has been set to another value. After an
// error all values are undefined; the next RunAll starts from scratch.
//
// On a device with memory of its own, results are device values, which HostValue copies to the host. The derivative of
// an input lies where the input lies: on the host, where Gorgonia's own solvers read it, or after MoveInputs on the
// device, where AdamW reads it. A run waits for its end if it has to bring a derivative or a Read to the host.
//
// A Machine is used by one goroutine at a time: a call that meets another one under way does nothing and returns an
// error. Only Plan, Counts, Refresh and the methods that tell what the machine is made of may be called at any time.
// Several machines may be made of one graph and run one after another. If one of them reads on the device what another
// one has computed there, call Synchronize of the other one first.
type Machine struct {
	*plan
	use    exclusive
	closed atomic.Bool
	opts   options
	owned  bool   // the machine made the backend: Close closes it
	stream Stream // nil for a machine that NewMachine has not made
	second Stream // of collectives, beside the stream; nil without them
	forked bool   // the stream has not waited for the second one

	// of a group
	collected bool // the run has collective steps
	comparing bool // the run compares the weights of the ranks
	updated   int  // number of Steps that have succeeded
	marks     []*runMark

	readers  []*AsyncReader
	segments []segment // those of the prologue come first, if there is one

	// memory
	memory      Memory
	wholeMemory cpu.Buf // the arena and the workspace
	work        cpu.Buf
	works       []*cpu.Buf // by step: its work memory
	state       []state    // by planValue.id
	cell        cpu.Buf    // points at a host value while its numbers are checked
	fetched     cpu.Buf    // points at the elements of the last Fetch

	// ops on the host
	hostMem hostMemory
	args    []G.Value       // operands of the op that runs
	train   []G.TrainModeOp // those that tell training from evaluation

	// values of nodes
	inputs      []*planValue // inputs that a step reads
	kept        []*planValue // computed values that nodes have after a run
	hidden      G.Nodes      // nodes that are computed and have no value after a run
	hiddenGraph *G.ExprGraph // the subgraph of hidden
	readValues  []G.Value    // by read: the value that the machine put into its target

	// what changes from run to run
	run      int64 // number of runs so far, with the one that is running
	running  *step // the step that is running, nil between steps
	warm     bool  // a run has succeeded
	stepping bool  // the run takes a step
	// a Step hands out the results before the update, since that may fail: it copies some to the host
	storesFirst    bool
	checkedAt      int64          // addressChanges + 1 when the places of weights were checked; 0: never
	beginsSums     bool           // the next run begins the sums of WithGradSums: it overwrites them
	halfUpToDate   atomic.Bool    // the half-precision copies hold the present weights
	addressChanges int64          // how often an address that kernels read has changed
	counts         []atomic.Int64 // by step: how often it has run
	transfers      struct{ uploads, downloads atomic.Int64 }
	afterStep      func(index int) // called after each step, unless nil: for timing and tests
}

var _ G.VM = (*Machine)(nil)

// state is what a machine stores for a value of the plan.
type state struct {
	// host is the value that ops on the host read. If remote, the value lies on the device alone, and the machine
	// copies it to staging before an op on the host reads it; copied is the run of the last such copy.
	host, staging G.Value
	header        *tensor.Dense // of an input or a constant: host is this header of its own over the bound tensor's memory
	remote        bool
	adopted       bool // host is a value of the device, which kernels read in place
	copied        int64
	shown         G.Value // the value that the machine has given to the node
	dual          G.Value // of a derivative: the dual value of the input to which the last run has copied it
	own           Memory  // device memory for an input or a constant of the host, allocated when first needed
}

// Backend returns the backend that the machine runs on.
func (m *Machine) Backend() Backend {
	if m == nil {
		return nil
	}
	return m.opts.backend
}

// Stream returns the stream of the machine's runs, nil after Close. What a solver enqueues there is in order with the
// runs.
func (m *Machine) Stream() Stream {
	if m == nil || m.closed.Load() {
		return nil
	}
	return m.stream
}

// Reset does nothing, because each run starts from scratch. gorgonia.VM requires the method.
func (m *Machine) Reset() {}

// begin begins a call of a method. If it returns nil, the method must call m.use.end.
func (m *Machine) begin() error {
	if m == nil || m.stream == nil {
		return errMachineClosed
	}
	if err := m.use.begin(); err != nil {
		return fmt.Errorf("graph: machine: %w", err)
	}
	if m.closed.Load() {
		m.use.end()
		return errMachineClosed
	}
	if err := m.groupError(); err != nil {
		m.use.end()
		return fmt.Errorf("graph: machine: %w", err)
	}
	return nil
}

// segment is a sequence of steps that are all kernels, or one op on the host.
type segment struct {
	from, to int // steps
	kernels  bool
	sums     bool // some steps begin sums or add to them
	reduces  bool // some steps average gradients over ranks
	updates  bool // some steps are of the update
	compares bool // all steps sum weights, to compare them with other ranks

	recordings [4]recording
}

// recording is one capture of a segment.
type recording struct {
	replay         Replay // nil for none
	addressChanges int64  // that of the machine at the capture
}

// count counts a run of step i. It logs the step if it is attention and the policy asks for an audit.
func (m *Machine) count(i int) {
	m.counts[i].Add(1)
	if !m.policy.Audit {
		return
	}
	s := m.steps[i]
	if branch, _ := m.policy.Attention(s.spec); branch != "" {
		m.opts.logger.Info("attention", "run", m.run, "node", s.node.ID(), "op", s.opName(), "q",
			s.in[0].arg.Operand.String(),
			"k", s.in[1].arg.Operand.String(), "implementation", s.implementation, "refused", joinRefusals(s.refused))
	}
}

var (
	errMachineClosed = errors.New("graph: machine: closed")
	errInUse         = errors.New("in use: only one goroutine at a time may use it")
)

// exclusive lets one call in at a time. It makes an error of misuse by several goroutines, and of an op or a logger
// that calls back.
type exclusive struct{ busy atomic.Bool }

func (e *exclusive) begin() error {
	if !e.busy.CompareAndSwap(false, true) {
		return errInUse
	}
	return nil
}

func (e *exclusive) end() { e.busy.Store(false) }

var errClosed = errors.New("closed")
