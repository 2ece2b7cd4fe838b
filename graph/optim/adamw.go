// Package optim trains the weights of a graph: AdamW, Muon for matrices, schedules of the learning rate, and the loss
// scale of fp16.
//
// An AdamW is a gorgonia.Solver for any VM. In a graph.Machine made with graph.WithOptimizer its step is part of the
// plan: the machine runs, records and replays both as one.
package optim

import (
	"errors"
	"fmt"
	"math"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/ops/spec/optimizer"
)

// ErrNotFinite is the error of a step whose gradients have NaN, Inf, or a sum of squares that is too large.
var ErrNotFinite = graph.ErrNotFinite

// AdamW is a graph.Optimizer and a gorgonia.Solver: Adam with decoupled weight decay (Loshchilov and Hutter, arXiv
// 1711.05101). The gradients are first scaled down to a bound of their global norm. Step t, counted from 1, is, for
// each weight p and gradient g,
//
//	g = g * min(1, clip / (norm + 1e-6))     norm over the gradients of all weights
//	m = beta1 m + (1-beta1) g                v = beta2 v + (1-beta2) g²
//	p = p - lr (m/(1-beta1^t) / (sqrt(v/(1-beta2^t)) + eps) + decay p)
//
// Weights of WithMuon take another step, with the same gradients, learning rate and decay.
//
// A step changes the weights in place. m and v are in memory of the machine that takes the steps, in the weights' type:
// of the machine of graph.WithOptimizer, or else of one of the solver's own, which the first Step makes. Step wants the
// same weights each time: the same number, in the same order, of the same names, types and shapes. Their values may
// have moved to other addresses.
//
// A step does not change gradients, with one exception: as Gorgonia's solvers do, it sets gradients to zero that a
// TapeMachine with gorgonia.BindDualValues adds up over its runs.
//
// If the norm is not finite, no weight changes, and the step returns ErrNotFinite. On a device with memory of its own
// it returns no error: only Norm shows it, and the step counts until UncountStep.
//
// An AdamW is used by one goroutine at a time.
type AdamW struct {
	options adamWOptions
	closed  bool
	lr      float64 // set by SetLR
	scale   float64 // scale of the gradients; 0 means 1
	step    int     // steps taken

	state   *graph.OptimizerState // of the machine that takes the steps; nil before it is made
	own     *ownMachine           // of Step
	pending safetensors.File      // set by SetState before there is a machine
}

// NewAdamW returns a solver that has taken no step.
func NewAdamW(opts ...AdamWOption) (_ *AdamW, err error) {
	defer fault.Name(&err, "optim", "adamw")
	s := &AdamW{options: adamWOptions{
		schedule: Constant(1e-3), beta1: 0.9, beta2: 0.95, eps: 1e-8, decay: 0.1, decays: DefaultDecayRule, clip: 1,
	}}
	for _, opt := range opts {
		if opt == nil {
			return nil, errors.New("nil option")
		}
		opt(&s.options)
	}
	return s, s.options.validate()
}

// SetLR sets the learning rate of all later steps and removes the schedule. It allocates nothing.
func (s *AdamW) SetLR(lr float64) (err error) {
	defer fault.Name(&err, "optim", "adamw")
	if err := checkLR(lr); err != nil {
		return err
	}
	s.options.schedule, s.lr = nil, lr
	return nil
}

// SetGradScale says that the gradients of all later steps are too large by the factor scale, as those of
// graph.ScaledGrad. The solver divides them by scale: steps and norms are those of the divided gradients. It allocates
// nothing.
func (s *AdamW) SetGradScale(scale float64) error {
	if !(scale > 0) || math.IsInf(scale, 1) {
		return fmt.Errorf("optim: adamw: scale of the gradients is %v, want a finite number above 0", scale)
	}
	s.scale = scale
	return nil
}

// LR returns the learning rate of the next step.
func (s *AdamW) LR() float64 {
	if s.options.schedule == nil {
		return s.lr
	}
	return s.options.schedule.At(s.step)
}

// UncountStep uncounts the last step. Call it only if the norm of that step was not finite, so that it has changed
// nothing. It is for steps on a device, for which the host does not wait: on the CPU Step returns the error itself.
func (s *AdamW) UncountStep() { s.step = max(0, s.step-1) }

// Steps returns the number of steps taken.
func (s *AdamW) Steps() int { return s.step }

var (
	_ G.Solver        = (*AdamW)(nil)
	_ graph.Optimizer = (*AdamW)(nil)

	errClosed = errors.New("closed")
	errZero   = errors.New("make the solver by NewAdamW")
)

func (s *AdamW) Rule(name string, shape tensor.Shape) (muon, decay bool) {
	o := &s.options
	return o.muon != nil && o.muon(name, shape), o.decays != nil && o.decays(name, shape)
}

// Attach implements graph.Optimizer. A solver has one machine.
func (s *AdamW) Attach(state *graph.OptimizerState) (err error) {
	defer fault.Name(&err, "optim", "adamw")
	switch {
	case s.closed:
		return errClosed
	case s.options.schedule == nil && s.lr == 0 && s.options.decays == nil:
		return errZero
	case s.state != nil:
		return errors.New("it is the optimizer of another machine already")
	}
	if s.pending.Metadata != nil {
		if err := restore(state, s.step, s.pending.Tensors); err != nil {
			return fmt.Errorf("state: %w", err)
		}
	}
	s.state = state
	return nil
}

func (s *AdamW) Begin() (h optimizer.Hyper, err error) {
	defer fault.Name(&err, "optim", "adamw")
	if s.closed {
		return h, errClosed
	}
	lr := s.LR()
	if err := checkLR(lr); err != nil {
		return h, err
	}
	o := &s.options
	return optimizer.Hyper{
		LR: lr, Beta1: o.beta1, Beta2: o.beta2, Eps: o.eps, Decay: o.decay, Clip: o.clip, Scale: s.scale, Step: s.step + 1,
		Momentum: momentum,
	}, nil
}

func (s *AdamW) End(err error) {
	if err == nil {
		s.step, s.pending = s.step+1, safetensors.File{}
	}
}

// Norm returns the global norm of the gradients of the last step, before they were clipped; 0 before the first step. On
// an asynchronous device it waits for the step.
func (s *AdamW) Norm() (norm float64, err error) {
	defer fault.Name(&err, "optim", "adamw: norm")
	switch {
	case s.closed:
		return 0, errClosed
	case s.state == nil:
		return 0, nil
	}
	return s.state.Norm()
}

// NormReader returns a graph.AsyncReader of the global norm of the gradients, float64 (1). The solver must be the
// optimizer of a machine, or have taken a step. Closing that machine or the solver closes the reader.
func (s *AdamW) NormReader() (r *graph.AsyncReader, err error) {
	defer fault.Name(&err, "optim", "adamw")
	if s.closed || s.state == nil {
		return nil, errors.New("reader of the norm: the solver has no machine yet, or is closed")
	}
	return s.state.NormReader()
}

// Close frees the memory of a solver with a machine of its own, and ends its state. On a CPU the garbage collector does
// so without Close. The machine of graph.WithOptimizer stays as it is.
func (s *AdamW) Close() error {
	s.closed = true
	if s.own == nil {
		return nil
	}
	m := s.own.machine
	s.own, s.state = nil, nil
	return m.Close()
}
