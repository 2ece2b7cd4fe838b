// Package optim trains the weights of a graph: AdamW, Muon for matrices, schedules of the learning rate, and the loss
// scale of fp16.
//
// An AdamW is a gorgonia.Solver for any VM. For a graph.Machine it is also a graph.Solver: the machine can record a run
// and the step together.
package optim

import (
	"errors"
	"fmt"
	"math"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/value"
)

// ErrNotFinite is the error of a step whose gradients have NaN, Inf, or a sum of squares that is too large.
var ErrNotFinite = errors.New("gradients are not finite")

// AdamW is a gorgonia.Solver: Adam with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101). The gradients
// are first scaled down to a bound of their global norm. Step t, counted from 1, is, for each weight p and gradient g,
//
//	g = g * min(1, clip / (norm + 1e-6))     norm over the gradients of all weights
//	m = beta1 m + (1-beta1) g                v = beta2 v + (1-beta2) g²
//	p = p - lr (m/(1-beta1^t) / (sqrt(v/(1-beta2^t)) + eps) + decay p)
//
// Weights of WithMuon take another step, with the same gradients, learning rate and decay.
//
// A step changes the weights in place. m and v are in memory of the solver's backend, in the weights' type. A step
// allocates nothing once warm. The first step fixes the weights: later steps want the same number, in the same order,
// of the same names, types and shapes. Their values may have moved to other addresses.
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
	begun   bool    // Begin has succeeded, End has not followed yet
	lr      float64 // set by SetLR
	scale   float64 // scale of the gradients; 0 means 1
	step    int     // steps taken

	bound   *boundAdamW      // nil before the first step
	pending safetensors.File // set by SetState before the first step
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
	o := &s.options
	if err := o.validate(); err != nil {
		return nil, err
	}
	switch {
	case !o.givenMachine:
		o.machine, err = graph.NewMachine(G.NewGraph(), graph.WithPolicy(graph.Policy{}))
	case o.machine == nil:
		err = errors.New("the machine of WithMachine is nil")
	case o.machine.Stream() == nil:
		err = errors.New("the machine of WithMachine is closed")
	}
	if err != nil {
		return nil, err
	}
	return s, nil
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

// Step implements gorgonia.Solver. Errors name the weight. After an error the weights are unchanged and the step does
// not count. Errors are: a weight without a value or a gradient; a weight that is not in the backend's memory, has
// another shape than before, or shares memory with another one; gradients whose norm is not finite.
func (s *AdamW) Step(weights []G.ValueGrad) error {
	if m := s.options.machine; m != nil {
		defer m.Refresh()
	}
	if err := s.Begin(weights); err != nil {
		return err
	}
	if err := s.Launch(); err != nil {
		return err
	}
	return s.End(weights)
}

var _ graph.Solver = (*AdamW)(nil)

// Machine implements graph.Solver.
func (s *AdamW) Machine() *graph.Machine { return s.options.machine }

var errClosed = errors.New("closed")

// Begin implements graph.Solver. Its errors are those of Step. The first step binds the kernel to the weights; if it
// fails, the next step may have other weights.
func (s *AdamW) Begin(weights []G.ValueGrad) (err error) {
	defer fault.Name(&err, "optim", "adamw")
	switch {
	case s.closed:
		return errClosed
	case s.options.machine == nil:
		return errors.New("make the solver by NewAdamW")
	}
	for i, w := range weights {
		if value.IsNil(w) {
			return fmt.Errorf("weight %d is nil", i)
		}
	}
	lr := s.LR()
	if err := checkLR(lr); err != nil {
		return err
	}
	b := s.bound
	if b == nil {
		b = &boundAdamW{adamWOptions: &s.options}
		err = b.bindWeights(weights)
		if err == nil && s.pending.Metadata != nil {
			if err = b.restore(s.step, s.pending.Tensors); err != nil {
				err = fmt.Errorf("state: %w", err)
			}
		}
	}
	if err == nil {
		err = b.adopt(weights)
	}
	if err == nil {
		err = b.prepare(lr, s.scale, s.step+1)
	}
	if err != nil && s.bound == nil {
		return errors.Join(err, b.close())
	}
	if err == nil {
		s.bound, s.pending, s.begun = b, safetensors.File{}, true
	}
	return err
}

// Launch implements graph.Solver.
func (s *AdamW) Launch() (err error) {
	defer fault.Name(&err, "optim", "adamw")
	if !s.begun {
		return errors.New("launch without a step that has begun")
	}
	return s.bound.kernel.Launch(s.bound.stream, &s.bound.work)
}

// End implements graph.Solver.
func (s *AdamW) End(weights []G.ValueGrad) (err error) {
	defer fault.Name(&err, "optim", "adamw")
	if !s.begun {
		return errors.New("end without a step that has begun")
	}
	s.begun = false
	for _, w := range weights {
		zeroDual(w)
	}
	if err := s.bound.checkNorm(); err != nil {
		return err
	}
	s.step++
	return nil
}

// zeroDual sets the gradient of w to zero if it is a sum of gorgonia.BindDualValues, not a value that a machine writes
// in each run.
func zeroDual(w G.ValueGrad) {
	n, ok := w.(*G.Node)
	if !ok {
		return
	}
	if grad, err := n.Grad(); err == nil && (n.Deriv() == nil || n.Deriv().Value() != grad) {
		G.ZeroValue(grad)
	}
}

// Norm returns the global norm of the gradients of the last step, before they were clipped; 0 before the first step. On
// an asynchronous device it waits for the step.
func (s *AdamW) Norm() (norm float64, err error) {
	defer fault.Name(&err, "optim", "adamw: norm")
	b := s.bound
	switch {
	case s.closed:
		return 0, errClosed
	case b == nil:
		return 0, nil
	}
	if err := errors.Join(b.stream.Download(b.hostNorm, b.norm), b.stream.Synchronize()); err != nil {
		return 0, err
	}
	return b.hostNorm.Float64s()[0], nil
}

// NormReader returns a graph.AsyncReader of the global norm of the gradients, float64 (1). The solver must have taken a
// step. Closing the solver closes the reader.
func (s *AdamW) NormReader() (r *graph.AsyncReader, err error) {
	defer fault.Name(&err, "optim", "adamw")
	if s.closed || s.bound == nil {
		return nil, errors.New("reader of the norm: no step has been taken, or the solver is closed")
	}
	if r, err = graph.NewAsyncReader(s.bound.stream, "the norm", s.bound.norm); err != nil {
		return nil, err
	}
	s.bound.readers = append(s.bound.readers, r)
	return r, nil
}

// Close frees the solver's memory and ends its state. On a CPU the garbage collector does so without Close.
func (s *AdamW) Close() error {
	var err error
	s.closed, s.begun = true, false
	if s.bound != nil {
		err = s.bound.close()
		s.bound = nil
	}
	if o := &s.options; !o.givenMachine && o.machine != nil {
		err = errors.Join(err, o.machine.Close())
	}
	return err
}
