package train

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/internal/terminal"
)

// redrawEvery is the least time between steps that draw the bar again. Phases are shown at once.
const redrawEvery = 200 * time.Millisecond

// lineEvery is the time without a line after which a step writes one, if there is no terminal.
const lineEvery = 30 * time.Second

// display shows the progress of a run: lines that stay and, on a terminal, a bar below them; without a terminal, a line
// from time to time. All of it fits the width of the terminal. Writing may fail, as when a terminal is closed: this
// does not stop the run.
type display struct {
	mutex      sync.Mutex // the goroutines of the watchdog and of the run use it
	w          io.Writer
	terminal   bool
	lastLine   time.Time // when it wrote the last line
	done       float64   // part of the run, 0 to 1
	stepText   fields    // the last step
	memoryText string    // the device's memory in use, after that step
	lastDraw   time.Time // when a step last drew the bar
	lastMemory time.Time // when it last asked the driver for the memory
	noMemory   bool      // the driver did not answer
}

func newDisplay(w io.Writer) *display {
	if w == nil {
		w = io.Discard
	}
	return &display{w: w, terminal: terminal.Width(w) > 0}
}

// eraseBelow erases the row of the cursor behind it, and the rows below.
const eraseBelow = "\x1b[J"

// line writes a line that stays.
func (d *display) line(format string, args ...any) {
	d.write(terminal.Wrap(fmt.Sprintf(format, args...), terminal.Width(d.w), 2))
}

// write writes lines that stay, over the bar.
func (d *display) write(text string) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.terminal {
		text = eraseBelow + text
	}
	fmt.Fprintln(d.w, text)
	d.lastLine = time.Now()
}

// draw draws the bar. The cursor then stands at its beginning: where a terminal that becomes narrower breaks the bar
// into several rows, all of them are below the cursor.
func (d *display) draw(f fields) {
	columns := terminal.Width(d.w) - 1 // a character in the last column may move the cursor on
	bar, length := fmt.Sprintf("%3d%% ", int(100*d.done)), min(24, columns-terminal.Columns(f.text(columns))-8)
	if length >= 8 {
		full := int(d.done * float64(length))
		bar += "|" + strings.Repeat("█", full) + strings.Repeat(" ", length-full) + "| "
	}
	fmt.Fprintf(d.w, "%s%s\r", terminal.Cut(bar+f.text(columns-terminal.Columns(bar)), columns), eraseBelow)
}

// warn writes a warning that stays.
func (d *display) warn(format string, args ...any) { d.line("warning: "+format, args...) }

// phase shows on the bar what the run does other than training.
func (d *display) phase(what string) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.terminal {
		d.draw(append(fields{{0, what}}, d.stepText.and(d.memoryText)...))
	}
}

// step shows the state after a step, which ran at rate tokens per second.
func (d *display) step(r *runner, rate float64) {
	first := d.stepText == nil
	d.stepText, d.done = d.text(r, rate), r.progress()
	switch {
	case first && r.Align:
		d.line("first batch: error %.4f; %.3g s per step", r.state.MeanLoss, float64(r.stepTokens())/rate)
	case first:
		d.line("first batch: loss %.3f (uniform guess: ln %d = %.3f); %.3g s per step",
			r.state.MeanLoss, r.corpus.Vocab(), math.Log(float64(r.corpus.Vocab())), float64(r.stepTokens())/rate)
	case !d.terminal:
		d.mutex.Lock()
		since := time.Since(d.lastLine)
		d.mutex.Unlock()
		if since > lineEvery {
			d.write(d.stepText.and(d.memory(r)).text(0))
		}
	case time.Since(d.lastDraw) >= redrawEvery:
		text := d.stepText.and(d.memory(r))
		d.mutex.Lock()
		defer d.mutex.Unlock()
		d.lastDraw = time.Now()
		d.draw(text)
	}
}

// evaluated shows an evaluation, in a line that stays.
func (d *display) evaluated(r *runner, e evaluation) {
	state, columns := d.stepText.and(d.memory(r)), terminal.Width(d.w)
	held, bits, perplexity := fmt.Sprintf("held out %.3f", e.HeldOut), fmt.Sprintf("%.3f bits per byte",
		r.corpus.BitsPerByte(e.HeldOut)),
		fmt.Sprintf("perplexity %.4g", math.Exp(e.HeldOut))
	if r.Align {
		d.write(append(state, field{0, fmt.Sprintf("held out %.4f", e.HeldOut)}).text(columns))
		return
	}
	line := append(state, field{0, fmt.Sprintf("%s (%s, %s)", held, bits, perplexity)}).text(0)
	if columns > 0 && terminal.Columns(line) > columns {
		line = append(state, field{0, held}, field{1, bits}, field{5, perplexity}).text(columns)
	}
	d.write(line)
}

// field is a part of a line. Where a line has no room for all, those of the highest rank are left out first.
type field struct {
	rank int
	text string
}

type fields []field

// and returns f with one more field.
func (f fields) and(memory string) fields { return append(f[:len(f):len(f)], field{4, memory}) }

// text returns as many fields, without empty ones, as so many columns have room for; without columns all of them.
func (f fields) text(columns int) string {
	for {
		var list []string
		last := 0
		for i, x := range f {
			if x.text != "" {
				list = append(list, x.text)
			}
			if x.rank >= f[last].rank {
				last = i
			}
		}
		line := strings.Join(list, "  ")
		if columns <= 0 || terminal.Columns(line) <= columns || len(f) == 0 {
			return line
		}
		if len(f) == 1 {
			return terminal.Cut(line, columns)
		}
		f = slices.Delete(slices.Clone(f), last, last+1)
	}
}

// memoryReporter is a backend whose driver reports how many bytes of the device's memory are in use, without waiting
// for the device.
type memoryReporter interface{ MemoryUsed() (int64, error) }

// memoryEvery is how often a bar asks a driver for its memory: a call may take a millisecond, and a bar changes with
// each step.
const memoryEvery = time.Second

// memory returns the device's memory in use, or the planned memory if the driver does not report it; "" on the host.
func (d *display) memory(r *runner) string {
	m, ok := r.backend.(memoryReporter)
	switch {
	case r.host():
		return ""
	case !ok || d.noMemory:
		return fmt.Sprintf("%s planned", memory.Size(r.memoryNeed.device))
	case d.terminal && time.Since(d.lastMemory) < memoryEvery:
		return d.memoryText
	}
	used, err := m.MemoryUsed()
	if err != nil {
		d.noMemory = true
		r.warn("%v: the memory that is shown from now on is the planned one", err)
		return d.memory(r)
	}
	d.memoryText, d.lastMemory = fmt.Sprintf("%s in use", memory.Size(used)), time.Now()
	return d.memoryText
}

// longest is the most time left that a display shows, 100 years.
const longest = 100 * 365 * 24 * time.Hour

func (d *display) text(r *runner, rate float64) fields {
	list := fields{{1, fmt.Sprintf("step %d", r.state.Step)}, {1, fmt.Sprintf("loss %.3f", r.state.MeanLoss)},
		{3, fmt.Sprintf("%.0f tok/s", rate)}}
	if done := r.progress(); done > 0 {
		left := time.Duration(min(float64(time.Since(r.start))*(1-done)/done, float64(longest)))
		list = append(list, field{2, fmt.Sprintf("%v left", left.Round(time.Second))})
	}
	return list
}

func (d *display) end() {
	if d.terminal {
		_, _ = io.WriteString(d.w, eraseBelow)
	}
}
