package tinylm

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
)

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
	known := len(r.log.Steps)
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
