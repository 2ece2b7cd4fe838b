package graph

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/value"
)

// Machine runs a graph. It is a gorgonia.VM and accepts any ExprGraph, subgraphs included. It runs the graph as it was when
// NewMachine was called.
//
// Each run reads the values that are bound to the graph's inputs at that time; they may differ from those of the run before.
// After a run these nodes have values, so that node.Value and node.Grad work as after a TapeMachine: the graph's roots, its
// scalars, the derivatives of its inputs, nodes that a gorgonia.Read reads, and the nodes of WithKeep. Other nodes have no
// values. The values lie in the machine's memory. They are valid until the next RunAll or Close: copy what must last longer.
// The value that a Read gives is on the host. The next run overwrites it, unless the Read's target has been set to another
// value. After an error all values are undefined; the next RunAll starts from scratch.
//
// On a device with memory of its own, results are device values, which HostValue copies to the host. The derivative of an
// input lies where the input lies: on the host, where Gorgonia's own solvers read it, or after MoveInputs on the device,
// where AdamW reads it. A run waits for its end if it has to bring a derivative or a Read to the host.
//
// A Machine is used by one goroutine at a time: a call that meets another one under way does nothing and returns an
// error. Only Plan, Counts, Refresh and the methods that tell what the machine is made of may be called at any time.
// Several machines may be made of one graph and run one after another. If one of them reads on the device what another
// one has computed there, call Synchronize of the other one first.
type Machine struct {
	*plan
	use      exclusive
	closed   atomic.Bool
	opts     options
	owned    bool   // the machine made the backend: Close closes it
	stream   Stream // nil for a machine that NewMachine has not made
	readers  []*AsyncReader
	segments []segment // those of the prologue come first, if there is one

	// memory
	memory      Memory
	wholeMemory cpu.Buf // the arena and the workspace
	work        cpu.Buf
	state       []state // by planValue.id
	cell        cpu.Buf // points at a host value while its numbers are checked

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
	run            int64          // number of runs so far, with the one that is running
	running        *step          // the step that is running, nil between steps
	warm           bool           // a run has succeeded
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
	// host is the value that ops on the host read. If remote, the value lies on the device alone, and the machine copies it
	// to staging before an op on the host reads it; copied is the run of the last such copy.
	host, staging G.Value
	header        *tensor.Dense // of an input or a constant: host is this header of its own over the bound tensor's memory
	remote        bool
	adopted       bool // host is a value of the device, which kernels read in place
	copied        int64
	shown         G.Value // the value that the machine has given to the node
	dual          G.Value // of a derivative: the dual value of the input to which the last run has copied it
	own           Memory  // device memory for an input or a constant of the host, allocated when first needed
}

type options struct {
	backend    Backend
	hasBackend bool // WithBackend
	keep       G.Nodes
	policy     *Policy
	capture    bool
	eval       bool

	constant           G.Nodes // inputs
	precision          Precision
	watchNaN, watchInf bool
	logger             *slog.Logger
	gradSums           bool
	sums               G.Nodes // inputs whose derivatives are summed, nil for all
	recompute          bool
	boundaries         G.Nodes // of WithRecompute
}

// Option is an option of NewMachine.
type Option func(*options)

// WithBackend makes the machine run on b; closing the machine leaves b open. Without this option the machine has a CPU
// backend of its own.
func WithBackend(b Backend) Option { return func(o *options) { o.backend, o.hasBackend = b, true } }

// WithKeep gives nodes values after a run, in addition to those that Machine lists.
func WithKeep(nodes ...*G.Node) Option {
	return func(o *options) { o.keep = append(o.keep, nodes...) }
}

// WithPolicy sets the policy for the choice of implementations. The default is PolicyFromEnv.
func WithPolicy(p Policy) Option { return func(o *options) { o.policy = &p } }

// WithCapture makes the machine record its kernels in the second run and replay the recording in later runs. It records
// again when an input has moved to another address on the device. It has no effect on a CPU.
func WithCapture() Option { return func(o *options) { o.capture = true } }

// WithConstantInputs says that inputs keep their values from run to run, such as the weights of a model that only predicts.
// In a graph without derivatives the machine then casts them to half precision in the first run only, and again after
// Refresh: each later run saves a pass over these inputs.
func WithConstantInputs(nodes ...*G.Node) Option {
	return func(o *options) { o.constant = append(o.constant, nodes...) }
}

// WithEvalMode sets ops that tell training from evaluation, such as dropout, to evaluation, as gorgonia.EvalMode does for a
// TapeMachine. The default is training. The option applies to the runs of this machine alone.
func WithEvalMode() Option { return func(o *options) { o.eval = true } }

// NewMachine plans g. Errors name the node. gorgonia.Grad may give several inputs one derivative, or a constant as
// derivative. NewMachine then adds copies to the graph and makes them the inputs' derivatives, because Gorgonia's solvers
// zero a gradient after use.
func NewMachine(g *G.ExprGraph, opts ...Option) (_ *Machine, err error) {
	m := &Machine{}
	if m.opts, err = newOptions(g, opts); err != nil {
		return nil, err
	}
	m.owned = !m.opts.hasBackend
	m.opts.setLogger()
	if err := m.build(g); err != nil {
		return nil, errors.Join(fault.In("graph", "machine", err), m.Close())
	}
	return m, nil
}

// newOptions applies opts. Without WithBackend the backend is a new one of the CPU.
func newOptions(g *G.ExprGraph, opts []Option) (o options, err error) {
	if g == nil {
		return o, errors.New("graph: machine: nil graph")
	}
	for _, opt := range opts {
		if opt == nil {
			return o, errors.New("graph: machine: nil option")
		}
		opt(&o)
	}
	if o.policy == nil {
		p, err := PolicyFromEnv()
		if err != nil {
			return o, err
		}
		o.policy = &p
	}
	switch b := o.backend; {
	case !o.hasBackend:
		o.backend = NewCPU(0)
	case b == nil:
		return o, errors.New("graph: machine: the backend is nil")
	case value.IsNil(b):
		return o, fmt.Errorf("graph: machine: the backend is a nil %T", b)
	}
	return o, nil
}

// build makes the plan and what the machine needs to run it.
func (m *Machine) build(g *G.ExprGraph) (err error) {
	if m.plan, err = newPlan(g, m.opts); err != nil {
		return err
	}
	if err := m.allocate(); err != nil { // kernels get memory, constants are uploaded
		return err
	}
	m.beginsSums = true
	m.hiddenGraph = g.Subgraph(slices.Clone(m.hidden)...)
	m.logPlan()
	return nil
}

// Backend returns the backend that the machine runs on.
func (m *Machine) Backend() Backend {
	if m == nil {
		return nil
	}
	return m.opts.backend
}

// Stream returns the stream of the machine's runs, nil after Close. What a solver enqueues there is in order with the runs.
func (m *Machine) Stream() Stream {
	if m == nil || m.closed.Load() {
		return nil
	}
	return m.stream
}

// Reset does nothing, because each run starts from scratch. gorgonia.VM requires the method.
func (m *Machine) Reset() {}

// Synchronize waits for the work of all runs so far and returns its first error.
func (m *Machine) Synchronize() error {
	if m != nil && m.Stream() == nil {
		return nil
	}
	if err := m.begin(); err != nil {
		return err
	}
	defer m.use.end()
	if err := m.stream.Synchronize(); err != nil {
		m.running = nil
		return m.runError(err)
	}
	return nil
}

// Close frees the machine's memory, and its backend if the machine made it. The values of its nodes are invalid afterwards.
func (m *Machine) Close() error {
	if m == nil {
		return errMachineClosed
	}
	if err := m.use.begin(); err != nil {
		return fmt.Errorf("graph: machine: %w", err)
	}
	defer m.use.end()
	if m.closed.Swap(true) {
		return nil
	}
	var errs []error
	if m.stream != nil {
		errs = append(errs, m.stream.Synchronize())
		for i := range m.segments {
			errs = append(errs, m.segments[i].drop())
		}
		for _, r := range m.readers {
			errs = append(errs, r.free())
		}
		errs = append(errs, m.stream.Close())
	}
	m.segments, m.readers = nil, nil
	for i := range m.state {
		if s := &m.state[i]; s.own != nil {
			errs = append(errs, s.own.Free())
			s.own = nil
		}
	}
	if m.memory != nil {
		errs = append(errs, m.memory.Free())
		m.memory = nil
	}
	if m.owned {
		m.owned = false
		errs = append(errs, m.opts.backend.Close())
	}
	return errors.Join(errs...)
}
