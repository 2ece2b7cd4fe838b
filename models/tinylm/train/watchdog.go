package train

import (
	"sync"
	"time"
)

// stallTime is the time without progress after which the watchdog reports.
const stallTime = time.Minute

// watchdog reports what a run does when it has made no progress for a while. It doubles the time before each further report.
type watchdog struct {
	mutex sync.Mutex
	what  string    // what the run does
	since time.Time // of the last progress
	end   chan struct{}
	done  sync.WaitGroup
}

// newWatchdog returns a watchdog that writes to d until it is closed.
func newWatchdog(d *display, patience time.Duration) *watchdog {
	w := &watchdog{what: "starting", since: time.Now(), end: make(chan struct{})}
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
		w.mutex.Lock()
		what, still := w.what, time.Since(w.since)
		w.mutex.Unlock()
		if still < patience {
			nextReport = patience
		} else if still >= nextReport {
			d.warn("no progress for %v: %s", still.Round(time.Second), what)
			nextReport *= 2
		}
	}
}

// phase says what the run does now.
func (w *watchdog) phase(what string) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.what, w.since = what, time.Now()
}

// alive says that the run makes progress.
func (w *watchdog) alive() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.since = time.Now()
}

func (w *watchdog) close() error {
	close(w.end)
	w.done.Wait()
	return nil
}
