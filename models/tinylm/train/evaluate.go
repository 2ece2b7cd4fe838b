package train

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/gorgonia-nsa/nsa/models/tinylm/corpus"
)

// evaluationDue reports whether an evaluation is due after the steps so far. If a run is stopped before it, the evaluation remains due,
// except in a run by time without -eval-every.
func (r *runner) evaluationDue() bool {
	step, last := r.state.Step, 0
	if n := len(r.state.Evaluations); n > 0 {
		last = r.state.Evaluations[n-1].Step
	}
	switch {
	case step == last:
		return false
	case r.EvalEvery > 0:
		return step/r.EvalEvery > last/r.EvalEvery
	case r.Steps > 0:
		return 10*step/r.Steps > 10*last/r.Steps
	}
	before := r.tenths
	r.tenths = int(10 * r.progress())
	return r.tenths > before
}

// evaluate records the held-out loss and writes a checkpoint. If ctx ends meanwhile, it records nothing.
func (r *runner) evaluate(ctx context.Context) error {
	if err := r.readAll(); err != nil {
		return err
	}
	r.phase("evaluating")
	loss, err := r.heldOut(ctx, r.EvalTokens)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	e := evaluation{Step: r.state.Step, HeldOut: loss, Train: r.state.MeanLoss}
	r.warnIf(r.log.HeldOut(e.Step, loss))
	r.show.evaluated(r, e)
	r.state.Evaluations = append(r.state.Evaluations, e)
	r.warnOfOverfitting()
	if err := r.recordLayers(); err != nil {
		return err
	}
	if err := r.trySave(); err != nil {
		return err
	}
	r.warnIf(r.log.Draw())
	r.rateSince = time.Now()
	return nil
}

// heldOut returns the held-out loss over roughly the given number of tokens, in nats per token.
func (r *runner) heldOut(ctx context.Context, tokens int) (float64, error) {
	batches, err := r.corpus.HeldOut(r.shape, tokens)
	if err != nil {
		return 0, err
	}
	sum, targets := 0.0, 0
	for _, b := range batches {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		fill(r.eval, b)
		if err := r.eval.Run(); err != nil {
			return 0, err
		}
		loss, err := r.eval.Loss()
		if err != nil {
			return 0, err
		}
		if notFinite(loss) {
			err = fmt.Errorf("the held-out loss after step %d is %v", r.state.Step, loss)
			return 0, r.diagnose(err, []*corpus.Batch{b})
		}
		sum, targets = sum+loss*float64(b.Targeted), targets+b.Targeted
		r.watchdog.alive()
	}
	return sum / float64(targets), nil
}

// saveDue reports whether it is time for a checkpoint that no evaluation writes.
func (r *runner) saveDue() bool {
	return (r.SaveMinutes > 0 || r.saveFailed) && r.savedStep != r.state.Step && time.Now().After(r.saveAt)
}

// trySave writes a checkpoint. If that fails, it warns, and the run tries again in a minute: a full disk may have room again.
func (r *runner) trySave() error {
	if err := r.readAll(); err != nil {
		return err
	}
	r.phase("saving")
	r.saveAt = time.Now().Add(r.saveEvery())
	err := r.save()
	if r.saveFailed = err != nil; r.saveFailed {
		r.saveAt = time.Now().Add(time.Minute)
		r.warn("%v; the run continues and tries again in a minute", err)
	}
	r.rateSince = time.Now()
	return nil
}

// How often, and for how long, a run that has ended tries to write its last checkpoint.
const (
	retryEvery = 10 * time.Second
	retryFor   = time.Hour
)

// saveOrWait writes the last checkpoint. If that fails, it waits for room on the disk and tries again, so that the run is not lost.
func (r *runner) saveOrWait(ctx context.Context) error {
	if err := r.readAll(); err != nil {
		return err
	}
	r.phase("saving")
	every := cmp.Or(r.hooks.retryEvery, retryEvery)
	for end := time.Now().Add(cmp.Or(r.hooks.retryFor, retryFor)); r.savedStep != r.state.Step; {
		err := r.save()
		if err == nil {
			break
		}
		if time.Now().After(end) {
			return err
		}
		r.show.warn("%v; trying again every %v until %v", err, every, end.Format(time.TimeOnly))
		select {
		case <-ctx.Done():
			return err
		case <-time.After(every):
			r.watchdog.alive()
		}
	}
	return nil
}

// warn shows and records a warning.
func (r *runner) warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.show.warn("%s", text)
	if err := r.log.Event("warning", map[string]any{"text": text}); err != nil {
		r.show.warn("%v", err)
	}
}

// warnIf shows an error of the record. The run continues: the next write to the record adds the missing data.
func (r *runner) warnIf(err error) {
	if err != nil {
		r.show.warn("%v", err)
	}
}

// risen is the rise of a loss above its lowest mean, in nats, from which on it counts as growing.
const risen = 0.5

// warnOfDivergence says once that the training loss grows.
func (r *runner) warnOfDivergence() {
	if r.state.Step < 20 || r.diverged {
		return
	}
	if r.lowestLoss == 0 || r.state.MeanLoss < r.lowestLoss {
		r.lowestLoss = r.state.MeanLoss
	}
	if r.state.MeanLoss > r.lowestLoss+risen {
		r.warn("the training loss is %.3f, %.2f nats above its lowest mean: it diverges. Lower -lr, or raise -warmup",
			r.state.MeanLoss, r.state.MeanLoss-r.lowestLoss)
		r.diverged = true
	}
}

// warnOfOverfitting warns if the held-out loss has risen three times in a row while the training loss has fallen.
func (r *runner) warnOfOverfitting() {
	const times = 3
	list := r.state.Evaluations
	if len(list) <= times {
		return
	}
	list = list[len(list)-times-1:]
	for i, e := range list[1:] {
		if e.HeldOut <= list[i].HeldOut || e.Train >= list[i].Train {
			return
		}
	}
	r.warn("the held-out loss has risen %d times in a row while the training loss fell: the model overfits", times)
}
