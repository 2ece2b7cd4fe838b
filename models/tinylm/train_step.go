package tinylm

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gorgonia-nsa/nsa/internal/runlog"
)

// lateStep is a step that has begun. Its loss and norm are not known yet.
type lateStep struct {
	runlog.Step
	scale float64 // of the loss; 0 for none
}

// step begins a training step and records its results. On a device it records those of the step before instead, so that
// the host does not wait for the step that it has just begun.
func (r *run) step(done float64) error {
	next := lateStep{Step: runlog.Step{Number: r.steps + 1, LR: r.rate(done)}}
	if err := r.begin(&next); err != nil {
		return fmt.Errorf("step %d: %w", next.Number, err)
	}
	r.steps++
	r.late = append(r.late, next)
	if !r.model.machine.Backend().Device().Host && len(r.late) == 1 {
		return nil
	}
	return r.record()
}

// begin enqueues a step and the copies of its loss and norm.
func (r *run) begin(s *lateStep) error {
	if r.scale != nil {
		s.scale = r.scale.Value()
		if err := r.model.SetLossScale(s.scale); err != nil {
			return err
		}
	}
	if err := r.solver.SetLR(s.LR); err != nil {
		return err
	}
	r.batches.next(r.model)
	if err := r.model.RunAndStep(r.solver); err != nil {
		return err
	}
	if r.norms == nil {
		var err error
		if r.norms, err = r.solver.WatchNorm(); err != nil {
			return err
		}
	}
	return errors.Join(r.losses.Fetch(), r.norms.Fetch())
}

// record waits for the oldest step not recorded yet and records it. After an error the numbers cannot be
// matched to steps, so none of the others is recorded.
func (r *run) record() (err error) {
	s := r.late[0]
	r.late = slices.Delete(r.late, 0, 1)
	defer func() {
		if err != nil {
			err, r.late = fmt.Errorf("step %d: %w", s.Number, err), nil
		}
	}()
	if s.Loss, err = r.losses.Next(); err != nil {
		return err
	}
	if s.GradNorm, err = r.norms.Next(); err != nil {
		return err
	}
	switch {
	case r.scale != nil && r.scale.Adjust(s.GradNorm, s.scale):
		r.solver.TakeBack()
	case math.IsNaN(s.GradNorm) || math.IsInf(s.GradNorm, 0):
		return fmt.Errorf("the loss is %v and the global norm of the gradients %v", s.Loss, s.GradNorm)
	default:
		keep := min(0.95, 1-1/float64(s.Number))
		r.loss = keep*r.loss + (1-keep)*s.Loss
	}
	now := time.Now()
	took := now.Sub(r.last)
	r.last = now
	r.busy += took
	s.TokensPerSec = float64(r.Batch*r.config.Context) / took.Seconds()
	r.log.Steps = append(r.log.Steps, s.Step)
	r.show.step(r)
	return nil
}

// finishSteps records all steps and waits for them.
func (r *run) finishSteps() error {
	for len(r.late) > 0 {
		if err := r.record(); err != nil {
			return err
		}
	}
	return r.model.machine.Synchronize()
}
