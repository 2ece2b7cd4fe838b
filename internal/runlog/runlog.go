// Package runlog keeps the record of a training run in its folder, while the run goes on:
//
//	steps.csv                       every step, one row each
//	events.jsonl                    what happened, one JSON object a line, with the metrics of a step every ten seconds
//	loss.png, lr.png, ...           curves of the steps
//	tensorboard/events.out.tfevents.*   scalars for TensorBoard
//
// Save writes the table and the curves aside, syncs and renames them, so that each is either whole or as it was before. Lines
// and scalars are appended at once: a process that is killed leaves at most the last of them torn.
//
// What cannot be written, on a full disk or without the folder, is an error of Event, HeldOut and Save. It stays in memory, and
// the next of these calls tries again.
package runlog

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/moby/sys/atomicwriter"
)

// Names of the files in a run folder.
const (
	StepsFile  = "steps.csv"
	EventsFile = "events.jsonl"
)

// stepLineEvery is the least time between the lines of two steps in events.jsonl: at most 8640 lines a day.
const stepLineEvery = 10 * time.Second

// Step is one training step.
type Step struct {
	Number       int       // from 1
	Time         time.Time // when it ended; zero is now
	Tokens       int64     // trained on since the beginning of the run, this step included
	Loss         float64   // nats a token, on the step's own batch, before the step
	LR           float64
	GradNorm     float64 // global, before clipping
	TokensPerSec float64
}

// Options describe a run to its record.
type Options struct {
	Title         string  // of the plots
	BytesPerToken float64 // of the held-out data, for bits a byte; 0 is unknown
}

// Log is the record of one run. Its methods may be called from several goroutines. The zero value has no folder: it keeps the
// steps and writes nothing.
type Log struct {
	dir     string
	options Options

	saving sync.Mutex // held while table and curves are written
	mu     sync.Mutex // guards what follows
	rows   []row      // ascending by number
	from   int        // the step that the run was resumed behind
	events appendFile

	line struct { // what the next line of a step in events.jsonl needs
		last  time.Time // time of the line before
		sum   float64   // of the losses since then
		steps int       // since then
	}
}

// Create makes the run folder dir and the files of an empty record in it. It is an error, fs.ErrExist, if dir exists already:
// of two runs that start at once with the same name one fails. Parents of dir are made as needed.
func Create(dir string, o Options) (*Log, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, fmt.Errorf("runlog: %w", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("runlog: a new run needs a new folder: %w", err)
		}
		return nil, fmt.Errorf("runlog: %w", err)
	}
	l := newLog(dir, o, 0)
	if err := l.Save(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return l, nil
}

// Resume opens the record in the run folder dir and goes on behind the given step, that of a checkpoint; 0 is the beginning.
// Rows of later steps, which the run had taken before it was killed, are dropped from the table. A torn last line of
// events.jsonl is cut off and temporary files are removed. The event "resume" notes the number of rows dropped, and of those
// missing up to step: Save before a checkpoint is written and none will be.
func Resume(dir string, step int, o Options) (*Log, error) {
	if step < 0 {
		return nil, fmt.Errorf("runlog: resume behind step %d, want at least 0", step)
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	if info, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("runlog: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("runlog: %s is not a folder", dir)
	}
	l := newLog(dir, o, step)
	text, err := os.ReadFile(l.Path(StepsFile))
	if err != nil && !(step == 0 && errors.Is(err, fs.ErrNotExist)) { // a run killed before its first Save has no table
		return nil, fmt.Errorf("runlog: %w", err)
	}
	if l.rows, err = parseTable(text); err != nil {
		return nil, fmt.Errorf("runlog: %s: %w", l.Path(StepsFile), err)
	}
	before := len(l.rows)
	l.dropFrom(step + 1)
	if err := repairLines(l.Path(EventsFile)); err != nil {
		return nil, fmt.Errorf("runlog: %w", err)
	}
	if err := l.removeTemporaries(); err != nil {
		return nil, fmt.Errorf("runlog: %w", err)
	}
	event := l.Event("resume", map[string]any{"rows_dropped": before - len(l.rows), "rows_missing": step - l.steps()})
	if err := errors.Join(event, l.Save()); err != nil {
		return nil, err
	}
	return l, nil
}

func newLog(dir string, o Options, from int) *Log {
	l := &Log{dir: dir, options: o, from: from}
	l.events.path = l.Path(EventsFile)
	return l
}

func (o Options) check() error {
	if !(o.BytesPerToken >= 0) || math.IsInf(o.BytesPerToken, 0) {
		return fmt.Errorf("runlog: %v bytes per token, want a number of at least 0", o.BytesPerToken)
	}
	return nil
}

// removeTemporaries removes the files that a Save wrote aside and did not come to rename.
func (l *Log) removeTemporaries() error {
	entries, err := os.ReadDir(l.dir)
	for _, e := range entries {
		for _, name := range l.savedFiles() {
			if strings.HasPrefix(e.Name(), ".tmp-"+name) {
				err = errors.Join(err, os.Remove(l.Path(e.Name())))
			}
		}
	}
	return err
}

// Path returns the path of a file in the run folder.
func (l *Log) Path(name string) string { return filepath.Join(l.dir, name) }

// Last returns the last step recorded, or one of number 0 if there is none.
func (l *Log) Last() Step {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := len(l.rows) - 1; i >= 0; i-- {
		if !l.rows[i].onlyHeldOut {
			return l.rows[i].Step
		}
	}
	return Step{}
}

// steps returns the number of steps recorded.
func (l *Log) steps() int {
	n := 0
	for _, r := range l.rows {
		if !r.onlyHeldOut {
			n++
		}
	}
	return n
}

// Step records a step. If its number is not above the last one's, it replaces the rows from that number on. It does not fail:
// what cannot be written now is written later, and Event and Save return the error.
func (l *Log) Step(s Step) {
	if s.Time.IsZero() {
		s.Time = time.Now()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.rows); n > 0 && s.Number == l.rows[n-1].Number && l.rows[n-1].onlyHeldOut {
		l.rows[n-1] = row{Step: s, heldOut: l.rows[n-1].heldOut}
	} else {
		l.dropFrom(s.Number)
		l.rows = append(l.rows, row{Step: s})
	}
	l.line.sum += s.Loss
	l.line.steps++
	if !due(l.line.last, s.Time, stepLineEvery) {
		return
	}
	// Numbers are always valid fields. What cannot be written is kept, and the next Event or Save returns the error.
	_ = l.note("step", s.Number, s.Time, map[string]any{
		"tokens": s.Tokens, "loss": s.Loss, "mean_loss": l.line.sum / float64(l.line.steps), "lr": s.LR, "grad_norm": s.GradNorm,
		"tokens_per_second": s.TokensPerSec,
	})
	l.line.last, l.line.sum, l.line.steps = s.Time, 0, 0
}

// due reports whether something that was last done at a time is to be done again. So it is when the clock was set back.
func due(last, now time.Time, every time.Duration) bool {
	d := now.Sub(last)
	return d < 0 || d >= every
}

// dropFrom removes the rows from a step on.
func (l *Log) dropFrom(step int) {
	n := len(l.rows)
	for n > 0 && l.rows[n-1].Number >= step {
		n--
	}
	l.rows = l.rows[:n]
}

// HeldOut records the loss after a step on data that is not trained on: in the step's row, and as the event "evaluation". Step 0
// is before the first one.
func (l *Log) HeldOut(step int, loss float64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := len(l.rows)
	for i > 0 && l.rows[i-1].Number >= step {
		i--
	}
	switch {
	case i == len(l.rows):
		l.rows = append(l.rows, row{Step: Step{Number: step, Time: time.Now()}, heldOut: loss, onlyHeldOut: true})
	case l.rows[i].Number != step:
		return fmt.Errorf("runlog: held-out loss of step %d: it is not recorded, step %d is", step, l.rows[i].Number)
	default:
		l.rows[i].heldOut = loss
	}
	fields := map[string]any{"loss": loss, "perplexity": math.Exp(loss)}
	if b := l.options.BytesPerToken; b > 0 {
		fields["bits_per_byte"] = bitsPerByte(loss, b)
	}
	return l.note("evaluation", step, time.Now(), fields)
}

// bitsPerByte converts a loss in nats a token.
func bitsPerByte(loss, bytesPerToken float64) float64 { return loss / math.Ln2 / bytesPerToken }

// Scalars records further numbers of a step, such as statistics by layer, as the event "scalars" and for TensorBoard, which
// groups names by what stands before a slash. All of them are written: it is for the caller to choose how often.
func (l *Log) Scalars(step int, values map[string]float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.note("scalars", step, time.Now(), map[string]any{"values": values}) // as in Step
}

// Event writes a line to events.jsonl: the time, the last step recorded, the kind, and the fields. NaN, Inf and errors become
// strings. It is an error if a field is named time, step or kind, or is nothing that JSON has.
func (l *Log) Event(kind string, fields map[string]any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	step := l.from
	if n := len(l.rows); n > 0 {
		step = l.rows[n-1].Number
	}
	return l.note(kind, step, time.Now(), fields)
}

// note appends a line to events.jsonl.
func (l *Log) note(kind string, step int, at time.Time, fields map[string]any) error {
	line, err := jsonLine(kind, step, at, fields)
	if err != nil {
		return fmt.Errorf("runlog: event %q: %w", kind, err)
	}
	l.events.add(line)
	return l.flush(false)
}

// flush writes all that has been added to the files that are appended to.
func (l *Log) flush(sync bool) error {
	if l.dir == "" {
		l.events.pending = nil
		return nil
	}
	if err := l.events.flush(sync); err != nil {
		return fmt.Errorf("runlog: %w", err)
	}
	return nil
}

// Save writes the table and the curves anew, and syncs the other files. Steps may be recorded meanwhile: it can run in a
// goroutine of its own.
func (l *Log) Save() error {
	if l.dir == "" {
		return nil
	}
	l.saving.Lock()
	defer l.saving.Unlock()
	l.mu.Lock()
	rows := append([]row(nil), l.rows...)
	err := l.flush(true)
	l.mu.Unlock()

	write := func(name string, content []byte, made error) {
		if made == nil {
			made = atomicwriter.WriteFile(l.Path(name), content, 0o644)
		}
		if made != nil {
			err = errors.Join(err, fmt.Errorf("runlog: %s: %w", l.Path(name), made))
		}
	}
	write(StepsFile, table(rows, l.options.BytesPerToken), nil) // first: a curve that fails does not lose the table
	for _, c := range curves() {
		if len(rows) == 0 {
			break
		}
		png, made := c.draw(rows, l.options)
		write(c.file, png, made)
	}
	return err
}

// savedFiles returns the names of the files that Save writes anew.
func (l *Log) savedFiles() []string {
	names := []string{StepsFile}
	for _, c := range curves() {
		names = append(names, c.file)
	}
	return names
}
