package tinylm

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"

	"github.com/schollz/progressbar/v3"

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
	s.Tokens = int64(s.Number * r.Batch * r.config.Context)
	r.log.Step(s.Step)
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

// barLength is the bar's number for a whole run.
const barLength = 1000

// progress shows how a run goes: a bar on a terminal, elsewhere a line for each evaluation.
type progress struct {
	w    io.Writer                // nil: nowhere
	bar  *progressbar.ProgressBar // nil: lines
	held string                   // the last held-out loss
}

func newProgress(w io.Writer) *progress {
	p := &progress{w: w}
	if f, ok := w.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			p.bar = progressbar.NewOptions(barLength, progressbar.OptionSetWriter(w), progressbar.OptionSetWidth(24),
				progressbar.OptionSetPredictTime(false), progressbar.OptionSetElapsedTime(false),
				progressbar.OptionShowDescriptionAtLineEnd(), progressbar.OptionClearOnFinish(),
				progressbar.OptionThrottle(200*time.Millisecond))
		}
	}
	return p
}

// step shows the state after a step.
func (p *progress) step(r *run) {
	if p.bar != nil {
		p.bar.Describe(p.line(r))
		// A bar that cannot be drawn does not stop the training.
		_ = p.bar.Set(min(barLength-1, int(barLength*r.done())))
	}
}

// heldOut shows the state after an evaluation.
func (p *progress) heldOut(r *run, loss float64) {
	p.held = fmt.Sprintf("  held out %.3f", loss)
	if p.w != nil && p.bar == nil {
		fmt.Fprintln(p.w, p.line(r))
	}
}

// line describes the state.
func (p *progress) line(r *run) string {
	known := r.log.Last().Number
	rate := float64(known*r.Batch*r.config.Context) / r.busy.Seconds()
	s := fmt.Sprintf("step %d  loss %.3f%s  %.0f tok/s", known, r.loss, p.held, rate)
	if done := r.done(); done > 0 {
		left := time.Duration(float64(time.Since(r.start)) * (1 - done) / done)
		s += fmt.Sprintf("  %v left", left.Round(time.Second))
	}
	return s
}

// end removes the bar.
func (p *progress) end() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
