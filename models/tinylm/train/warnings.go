package train

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// warn shows and records a warning.
func (r *runner) warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.display.warn("%s", text)
	if r.log == nil { // on ranks other than 0
		return
	}
	if err := r.log.Event("warning", map[string]any{"text": text}); err != nil {
		r.display.warn("%v", err)
	}
}

// warnIf shows an error of the record. The run continues: the next write to the record adds the missing data.
func (r *runner) warnIf(err error) {
	if err != nil {
		r.display.warn("%v", err)
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

// stallTime is the time without progress after which the watchdog reports.
const stallTime = time.Minute

// watchdog reports what a run does when it has made no progress for a while. It doubles the time before each further
// report.
type watchdog struct {
	last atomic.Pointer[progress]
	end  chan struct{}
	done sync.WaitGroup
}

// progress is what a run does, and when it made progress last.
type progress struct {
	what  string
	since time.Time
}

// newWatchdog returns a watchdog that writes to d until it is closed.
func newWatchdog(d *display, patience time.Duration) *watchdog {
	w := &watchdog{end: make(chan struct{})}
	w.phase("starting")
	w.done.Go(func() { w.run(d, patience) })
	return w
}

func (w *watchdog) run(d *display, patience time.Duration) {
	tick := time.NewTicker(patience / 4)
	defer tick.Stop()
	nextReport := patience
	for {
		select {
		case <-w.end:
			return
		case <-tick.C:
		}
		last := w.last.Load()
		if still := time.Since(last.since); still < patience {
			nextReport = patience
		} else if still >= nextReport {
			d.warn("no progress for %v: %s", still.Round(time.Second), last.what)
			nextReport *= 2
		}
	}
}

// phase says what the run does now.
func (w *watchdog) phase(what string) { w.last.Store(&progress{what, time.Now()}) }

// alive says that the run makes progress.
func (w *watchdog) alive() { w.phase(w.last.Load().what) }

func (w *watchdog) close() error {
	close(w.end)
	w.done.Wait()
	return nil
}
