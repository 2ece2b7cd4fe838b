package train

import (
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/gorgonia-nsa/nsa/internal/memory"
)

// barLength is the value of the bar at the end of a run.
const barLength = 1000

// redrawEvery is the least time between steps that move the bar. Phases are shown at once.
const redrawEvery = 200 * time.Millisecond

// lineEvery is the time without a line after which a step writes one, if there is no terminal.
const lineEvery = 30 * time.Second

// display shows the progress of a run: lines that stay and, on a terminal, a bar below them; without a terminal, a line from time to
// time. Writing may fail, as when a terminal is closed: this does not stop the run.
type display struct {
	mutex      sync.Mutex // the goroutines of the watchdog and of the run use it
	w          io.Writer
	bar        *progressbar.ProgressBar // nil: no terminal
	lastLine   time.Time                // when it wrote the last line
	stepText   string                   // the text of the last step
	memoryText string                   // the device's memory in use, after that text
	lastDraw   time.Time                // when a step last moved the bar
	lastMemory time.Time                // when it last asked the driver for the memory
	noMemory   bool                     // the driver did not answer
}

func newDisplay(w io.Writer) *display {
	if w == nil {
		w = io.Discard
	}
	d := &display{w: w}
	if f, ok := w.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			d.bar = progressbar.NewOptions(barLength, progressbar.OptionSetWriter(w), progressbar.OptionSetWidth(24),
				progressbar.OptionSetPredictTime(false), progressbar.OptionSetElapsedTime(false),
				progressbar.OptionShowDescriptionAtLineEnd(), progressbar.OptionClearOnFinish())
		}
	}
	return d
}

// line writes a line that stays.
func (d *display) line(format string, args ...any) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.bar != nil {
		_ = d.bar.Clear()
	}
	fmt.Fprintf(d.w, format+"\n", args...)
	d.lastLine = time.Now()
}

// sinceLine returns the time since the last line.
func (d *display) sinceLine() time.Duration {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return time.Since(d.lastLine)
}

// warn writes a warning that stays.
func (d *display) warn(format string, args ...any) { d.line("warning: "+format, args...) }

// phase shows on the bar what the run does other than training.
func (d *display) phase(what string) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.bar != nil {
		d.bar.Describe(what + "  " + d.stepText + d.memoryText)
		_ = d.bar.RenderBlank()
	}
}

// step shows the state after a step, which ran at rate tokens per second.
func (d *display) step(r *runner, rate float64) {
	first := d.stepText == ""
	d.stepText = d.text(r, rate)
	switch {
	case first:
		d.line("first batch: loss %.3f (uniform guess: ln %d = %.3f); %.3g s per step",
			r.state.MeanLoss, r.corpus.Vocab(), math.Log(float64(r.corpus.Vocab())), float64(r.stepTokens())/rate)
	case d.bar == nil:
		if d.sinceLine() > lineEvery {
			d.line("%s%s", d.stepText, d.memory(r))
		}
	case time.Since(d.lastDraw) >= redrawEvery:
		text := d.stepText + d.memory(r)
		d.mutex.Lock()
		defer d.mutex.Unlock()
		d.lastDraw = time.Now()
		d.bar.Describe(text)
		_ = d.bar.Set(min(barLength-1, int(barLength*r.progress())))
	}
}

// evaluated shows an evaluation, in a line that stays.
func (d *display) evaluated(r *runner, e evaluation) {
	d.line("%s%s  held out %.3f (%.3f bits per byte, perplexity %.4g)", d.stepText, d.memory(r), e.HeldOut,
		r.corpus.BitsPerByte(e.HeldOut), math.Exp(e.HeldOut))
}

// memoryReporter is a backend whose driver reports how many bytes of the device's memory are in use, without waiting for the device.
type memoryReporter interface{ MemoryUsed() (int64, error) }

// memoryEvery is how often a bar asks a driver for its memory: a call may take a millisecond, and a bar changes with each step.
const memoryEvery = time.Second

// memory returns the device's memory in use, or the planned memory if the driver does not report it; "" on the host.
func (d *display) memory(r *runner) string {
	m, ok := r.backend.(memoryReporter)
	switch {
	case r.host():
		return ""
	case !ok || d.noMemory:
		return fmt.Sprintf("  %s planned", memory.Size(r.memoryNeed.device))
	case d.bar != nil && time.Since(d.lastMemory) < memoryEvery:
		return d.memoryText
	}
	used, err := m.MemoryUsed()
	if err != nil {
		d.noMemory = true
		r.warn("%v: the memory that is shown from now on is the planned one", err)
		return d.memory(r)
	}
	d.memoryText, d.lastMemory = fmt.Sprintf("  %s in use", memory.Size(used)), time.Now()
	return d.memoryText
}

// longest is the most time left that a display shows, 100 years.
const longest = 100 * 365 * 24 * time.Hour

// text describes the state.
func (d *display) text(r *runner, rate float64) string {
	s := fmt.Sprintf("step %d  loss %.3f  %.0f tok/s", r.state.Step, r.state.MeanLoss, rate)
	if done := r.progress(); done > 0 {
		left := time.Duration(min(float64(time.Since(r.start))*(1-done)/done, float64(longest)))
		s += fmt.Sprintf("  %v left", left.Round(time.Second))
	}
	return s
}

// end removes the bar.
func (d *display) end() {
	if d.bar != nil {
		_ = d.bar.Finish()
	}
}
