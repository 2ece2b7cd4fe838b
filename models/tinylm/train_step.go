package tinylm

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gorgonia-nsa/nsa/internal/runlog"
)

// lateStep is a step whose loss is not known yet.
type lateStep struct {
	number int
	lr     float64
	scale  float64 // of the loss; 0 for none
}

// step begins a training step and records its results. On a device it records those of the step before instead, so that
// the host does not wait for the step that it has just begun.
func (r *run) step(done float64) error {
	if r.last.IsZero() {
		r.last = time.Now()
	}
	next := lateStep{number: r.steps + 1, lr: r.rate(done)}
	if r.scale != nil {
		next.scale = r.scale.Value()
	}
	if err := r.solver.SetLR(next.lr); err != nil {
		return err
	}
	r.batches.next(r.model)
	if err := r.begin(next); err != nil {
		return fmt.Errorf("step %d: %w", next.number, err)
	}
	r.steps = next.number
	r.late = append(r.late, next)
	if r.remote() && len(r.late) == 1 {
		return nil
	}
	return r.record()
}

// begin enqueues a step and the copies of its loss and norm.
func (r *run) begin(s lateStep) error {
	if s.scale != 0 {
		if err := r.model.SetLossScale(s.scale); err != nil {
			return err
		}
	}
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
	at := r.late[0]
	r.late = slices.Delete(r.late, 0, 1)
	defer func() {
		if err != nil {
			err, r.late = fmt.Errorf("step %d: %w", at.number, err), nil
		}
	}()
	loss, err := r.losses.Next()
	if err != nil {
		return err
	}
	norm, err := r.norms.Next()
	if err != nil {
		return err
	}
	skipped := r.scale != nil && r.scale.Adjust(norm, at.scale)
	if skipped {
		r.solver.TakeBack()
	} else if math.IsNaN(norm) || math.IsInf(norm, 0) {
		return fmt.Errorf("the loss is %v and the global norm of the gradients %v", loss, norm)
	}
	r.known = at.number
	if !skipped {
		keep := min(0.95, 1-1/float64(r.known))
		r.loss = keep*r.loss + (1-keep)*loss
	}
	now := time.Now()
	took := now.Sub(r.last)
	r.last = now
	r.busy += took
	speed := float64(r.Batch*r.config.Context) / took.Seconds()
	r.log.Steps = append(r.log.Steps, runlog.Step{Step: at.number, Loss: loss, LR: at.lr, GradNorm: norm, TokensPerSec: speed})
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
