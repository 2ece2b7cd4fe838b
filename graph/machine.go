package graph

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/value"
)

// Machine runs a graph. It is a gorgonia.VM and takes any ExprGraph, also a subgraph, as it is when NewMachine is called.
//
// Each run reads the values that are bound to the graph's inputs then, which may be other ones than before. After it the
// graph's roots, its scalars, the derivatives of its inputs, what a gorgonia.Read reads and the nodes of WithKeep have
// values, so that node.Value and node.Grad work as after a TapeMachine. These values lie in the machine's memory: they hold
// until the next RunAll or Close, and what must last longer has to be copied. What a Read gave is on the host, and is
// written again by the next run unless the Read's target has been set to another value. Other nodes have no values. After an
// error all are undefined; the next RunAll begins anew.
//
// On a device whose memory is not the host's, results are values there, which HostValue copies. The derivative of an input
// is where the input is: on the host, for Gorgonia's own solvers, unless the input has been moved by MoveInputs, for AdamW.
// Where a derivative or a Read is to be on the host, each run waits for its end.
//
// A Machine is used by one goroutine at a time. Several machines may be made of one graph and run one after another; where
// one reads, on the device, what another has computed there, the other has to Synchronize first.
type Machine struct {
	*plan
	state    []state // of the plan's operands, by their id
	opts     options
	owned    bool // the backend is the machine's own
	stream   Stream
	memory   Memory
	all      cpu.Buf // the whole of memory
	work     cpu.Buf
	inputs   []*operand   // that something reads
	kept     []*operand   // computed
	others   G.Nodes      // computed and not kept
	othersOf *G.ExprGraph // of others alone
	made     []G.Value    // what the machine has put into the targets of reads
	args     []G.Value
	hostMem  hostMemory
	cell     cpu.Buf // of a value of the host that is looked at
	train    []G.TrainModeOp
	counts   []int64 // how often each step has run

	segments []segment // the first are the prologue, if there is one
	begins   bool      // the next run begins the sums of WithGradSums: it writes them, and adds to nothing
	moves    int64     // changes of addresses that kernels read, so far
	warm     bool      // a run has succeeded
	upToDate bool      // the copies of weights in half precision: a solver's step has written them, or they are held
	watches  []*Watch
	run      int64 // number of runs begun
	at       *step // that runs, nil between steps
	copies   struct{ uploads, downloads int64 }

	// after, if not nil, is called after each step: for tests.
	after func(index int)
}

var _ G.VM = (*Machine)(nil)

// state is what a machine knows of an operand.
type state struct {
	// host is the value as ops on the host read it. What lies on another device alone, as remote says, is copied to staging
	// first, in the run that copied counts.
	host, staging G.Value
	remote        bool
	adopted       bool // host is a value of the device that kernels read where it is
	copied        int64
	bound         G.Value // what the machine has bound to the node
	own           Memory  // of an input or a constant that does not live on the device, allocated when it is first needed
}

type options struct {
	backend Backend
	on      bool // WithBackend
	keep    G.Nodes
	policy  *Policy
	capture bool
	eval    bool

	held               G.Nodes // inputs
	precision          Precision
	watchNaN, watchInf bool
	logger             *slog.Logger
	gradSums           bool
	sums               G.Nodes // inputs whose derivatives add up, nil for all
	recompute          bool
	boundaries         G.Nodes // of WithRecompute
}

var errMachineClosed = errors.New("graph: machine: closed")

// Option is an option of NewMachine.
type Option func(*options)

// WithBackend makes the machine run on b, which it leaves open. Without it the machine has a CPU backend of its own.
func WithBackend(b Backend) Option { return func(o *options) { o.backend, o.on = b, true } }

// WithKeep makes nodes have values after a run that would have none otherwise.
func WithKeep(nodes ...*G.Node) Option {
	return func(o *options) { o.keep = append(o.keep, nodes...) }
}

// WithPolicy sets the policy of the choice of implementations, PolicyFromEnv without it.
func WithPolicy(p Policy) Option { return func(o *options) { o.policy = &p } }

// WithCapture makes the machine record its kernels in the second run, and replay what was recorded from then on. It
// records again when an input has moved to another address on the device. On a CPU it changes nothing.
func WithCapture() Option { return func(o *options) { o.capture = true } }

// WithHeldInputs says that inputs, such as the weights of a model that only predicts, keep their values from run to run: their copies in
// half precision are made in the first run, and again after Refresh. Without derivatives in the graph it saves a pass over them.
func WithHeldInputs(nodes ...*G.Node) Option {
	return func(o *options) { o.held = append(o.held, nodes...) }
}

// WithEvalMode puts the ops that tell training from evaluation, such as dropout, into evaluation, as gorgonia.EvalMode
// does for a TapeMachine; without it they are in training. It holds for the runs of this machine.
func WithEvalMode() Option { return func(o *options) { o.eval = true } }

// NewMachine plans g. Errors name the node. Where gorgonia.Grad has given several inputs one derivative, or a constant, it
// adds copies to the graph and makes them the inputs' derivatives, since Gorgonia's solvers zero a gradient after use.
func NewMachine(g *G.ExprGraph, opts ...Option) (_ *Machine, err error) {
	m := &Machine{}
	if m.opts, err = newOptions(g, opts); err != nil {
		return nil, err
	}
	m.owned = !m.opts.on
	m.opts.setLogger()
	if err := m.build(g); err != nil {
		return nil, errors.Join(fmt.Errorf("graph: machine: %w", err), m.Close())
	}
	return m, nil
}

// newOptions returns what opts say of a machine for g. Without a backend it is a new one of the CPU.
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
	case !o.on:
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
	if err := m.bind(); err != nil { // kernels get memory, constants are uploaded
		return err
	}
	m.begins = true
	m.othersOf = g.Subgraph(slices.Clone(m.others)...)
	m.logPlan()
	return nil
}

// Reset does nothing: a run begins anew by itself. It is there for gorgonia.VM.
func (m *Machine) Reset() {}

// Synchronize waits for the work of all runs so far and returns its first error.
func (m *Machine) Synchronize() error {
	if m.stream == nil {
		return nil
	}
	if err := m.stream.Synchronize(); err != nil {
		m.at = nil
		return m.runError(err)
	}
	return nil
}

// Close frees the machine's memory, and its backend if it has one of its own. The values of its nodes end with it.
func (m *Machine) Close() error {
	var errs []error
	if m.stream != nil {
		errs = append(errs, m.stream.Synchronize())
		for i := range m.segments {
			errs = append(errs, m.segments[i].drop())
		}
		for _, w := range m.watches {
			errs = append(errs, w.Close())
		}
		errs = append(errs, m.stream.Close())
	}
	m.segments, m.stream = nil, nil
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
