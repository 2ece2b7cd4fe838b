package graph

import (
	"errors"
	"fmt"
	"log/slog"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/value"
)

// Option is an option of NewMachine.
type Option func(*options)

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

	optimizer          Optimizer
	hasOptimizer       bool // WithOptimizer
	group              Group
	hasGroup           bool // WithGroup
	sharded            bool // WithShardedStates
	weights, gradients G.Nodes
}

// WithLogger makes the machine log to l: its plan at level Info, refused implementations at Warn, and the steps of each
// run at Debug, except those that are replayed. Policy.Audit and Policy.Timing log at Info; without WithLogger they log
// text to stderr. The handler is called in the goroutine of the run.
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.logger = l } }

// WithBackend makes the machine run on b; closing the machine leaves b open. Without this option the machine has a CPU
// backend of its own.
func WithBackend(b Backend) Option { return func(o *options) { o.backend, o.hasBackend = b, true } }

// WithKeep gives nodes values after a run, in addition to those that Machine lists. No fusion leaves such a value out.
// In half precision it is rounded then, which a fused step may not do, and what is computed from it may change by that.
func WithKeep(nodes ...*G.Node) Option {
	return func(o *options) { o.keep = append(o.keep, nodes...) }
}

// WithPolicy sets the policy for the choice of implementations. The default is PolicyFromEnv.
func WithPolicy(p Policy) Option { return func(o *options) { o.policy = &p } }

// WithCapture makes the machine record its kernels in the second run and replay the recording in later runs. It records
// again when an input has moved to another address on the device. It has no effect on a CPU.
func WithCapture() Option { return func(o *options) { o.capture = true } }

// WithConstantInputs says that inputs keep their values from run to run, such as the weights of a model that only
// predicts. In a graph without derivatives the machine then casts them to half precision in the first run only, and
// again after Refresh: each later run saves a pass over these inputs.
func WithConstantInputs(nodes ...*G.Node) Option {
	return func(o *options) { o.constant = append(o.constant, nodes...) }
}

// WithEvalMode sets ops that tell training from evaluation, such as dropout, to evaluation, as gorgonia.EvalMode does
// for a TapeMachine. The default is training. The option applies to the runs of this machine alone.
func WithEvalMode() Option { return func(o *options) { o.eval = true } }

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
	if !o.hasGroup {
		return o, nil
	}
	if value.IsNil(o.group) {
		return o, errors.New("graph: machine: the group is nil")
	}
	return o, o.group.Err()
}

// WithNaNWatch makes a run end with an error if the result of an op has a NaN, as gorgonia.WithNaNWatch does for a
// TapeMachine. The error names the first such op and the nearest input of floats before it, such as a weight. The watch
// is slow: results on a device are copied to the host, nothing is replayed and no steps are fused. Further outputs of
// an op, such as the LSE of an attention, are not checked.
func WithNaNWatch() Option { return func(o *options) { o.watchNaN = true } }

// WithInfWatch is WithNaNWatch for infinite results.
func WithInfWatch() Option { return func(o *options) { o.watchInf = true } }

// watches reports whether the machine checks each result for NaN or Inf.
func (o *options) watches() bool { return o.watchNaN || o.watchInf }

// WithPrecision sets the precision; the default is F32. NewMachine returns an error if the backend lacks half precision
// and p needs it.
func WithPrecision(p Precision) Option { return func(o *options) { o.precision = p } }

// WithRecompute turns on activation checkpointing: the backward pass computes activations again instead of keeping them
// from the forward pass. Only the boundaries stay in memory. They are nodes of the forward pass, such as the residual
// stream after each layer of a transformer. If the backward pass reads an activation that lies before a boundary, the
// machine computes it again right before it is read, starting from the boundary before it. So the activations of a
// layer are in memory during the layer's own forward pass and its own backward pass. Activations after the last
// boundary are kept, as without this option: their backward pass comes at once.
//
// Results have the same bits, because the repeated steps are the same kernels on the same operands. If a boundary is
// part of a fused step, the results of that step stay in memory instead. Integers, such as the chosen blocks of
// selected attention, are kept. So are the results of ops that are not of package ops: these may run on the host or be
// random, as dropout is.
func WithRecompute(boundaries ...*G.Node) Option {
	return func(o *options) { o.recompute, o.boundaries = true, append(o.boundaries, boundaries...) }
}

// WithGradSums turns on gradient accumulation: the derivatives of inputs add up over the machine's runs, as those of a
// TapeMachine with gorgonia.BindDualValues do, and n.Grad is their sum. Without arguments it applies to all inputs that
// have a derivative. So several small batches give the gradient of a large one: call RunAll for each but the last, and
// Step for the last.
//
// A sum begins with the first run, and with the run after ZeroGrads or Step. That run writes the sum, later runs
// add to it. Gorgonia's solvers set the sum to zero after their step, with the same effect. AdamW.Step does not: call
// ZeroGrads after it. After a failed run the sums are undefined until ZeroGrads.
func WithGradSums(inputs ...*G.Node) Option {
	return func(o *options) { o.gradSums, o.sums = true, append(o.sums, inputs...) }
}
