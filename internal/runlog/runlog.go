// Package runlog writes the record of a training run to its folder during the run:
//
//	steps.csv                            every step, one row each
//	events.jsonl                         events, one JSON object a line, with the metrics of a step every ten seconds
//	loss.png, lr.png, grad_norm.png, rate.png
//	tensorboard/events.out.tfevents.*    scalars for TensorBoard, a file for each start
//
// Save writes the table and Draw the curves. They write each file under another name, sync it and rename it, so that it is either
// complete or as it was before. Lines and scalars are appended at once: if the process is killed, at most the last one is torn.
//
// If a write fails, on a full disk or without the folder, Event, HeldOut and Save return the error. The data stay in memory, and
// the next of these calls tries again.
package runlog

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/gorgonia-nsa/nsa/internal/files"
)

// Names of the files in a run folder.
const (
	StepsFile  = "steps.csv"
	EventsFile = "events.jsonl"
)

// The least time between two steps that are written, so that the record of a run of days stays readable: a day has at most 8640
// lines in events.jsonl and 86,400 points in TensorBoard. The table has every step.
const (
	stepLineEvery    = 10 * time.Second
	stepScalarsEvery = time.Second
)

// Step is one training step.
type Step struct {
	Number       int       // from 1
	Time         time.Time // when it ended; zero means now
	Tokens       int64     // trained on from the beginning of the run to the end of this step
	Loss         float64   // nats a token, on the step's own batch, before the step
	LR           float64
	GradNorm     float64 // global, before clipping
	TokensPerSec float64
}

// Options describe a run to its record.
type Options struct {
	Title         string  // of the plots
	BytesPerToken float64 // of the held-out data, for bits a byte; 0: unknown

	// Guard, if not nil, is called before each write to the folder. If it returns an error, nothing is written, as if the write had failed.
	Guard func() error
}

// Log is the record of one run. Several goroutines may call its methods. The zero value has no folder: it keeps the steps and
// writes nothing.
type Log struct {
	dir     string
	options Options
	damaged error // what was wrong with the table when the run was resumed

	saving       sync.Mutex // held while table and curves are written
	mu           sync.Mutex // guards what follows
	rows         []row      // ascending by number
	resumedAfter int        // the run was resumed after this step
	events       appendFile
	tensorboard  appendFile // for TensorBoard

	lastTensorboard time.Time // of the last step in tensorboard
	lastLine        time.Time // of the last step in events
	lossSum         float64   // of the steps since then
	lossCount       int
}

// Create makes the run folder dir, its parents as needed, and the files of an empty record in it. If dir exists already, the error
// wraps fs.ErrExist: of two runs that start at once with the same name, one fails.
func Create(dir string, o Options) (*Log, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	dir = filepath.Clean(dir) // with a slash at its end, it would be its own parent
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, fmt.Errorf("runlog: %w", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("runlog: a new run needs a new folder: %w", err)
		}
		return nil, fmt.Errorf("runlog: %w", err)
	}
	l, err := newLog(dir, o, 0)
	if err == nil {
		err = l.Save()
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return l, nil
}

// Resume opens the record in the run folder dir and continues after the given step, that of a checkpoint; 0 is the beginning.
// It drops the rows of later steps, which the run took before it was killed, from the table. If the table is damaged or ends before step,
// it keeps the rows that are there: see Damaged. It cuts off a torn last line of events.jsonl and removes temporary files. The event "resume"
// records the number of rows dropped and of rows missing up to step. No rows are missing if the run called Save before it wrote the
// checkpoint.
func Resume(dir string, step int, o Options) (*Log, error) {
	if step < 0 {
		return nil, fmt.Errorf("runlog: resume after step %d, want at least 0", step)
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	if info, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("runlog: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("runlog: %s is not a folder", dir)
	}
	l, err := newLog(dir, o, step)
	if err != nil {
		return nil, err
	}
	dropped, err := l.readTable()
	if err != nil {
		return nil, fmt.Errorf("runlog: %w", err)
	}
	if last := l.Last().Number; last < step && l.damaged == nil {
		l.damaged = fmt.Errorf("runlog: %s: its last row is of step %d, want %d: the rows between are lost", l.Path(StepsFile), last, step)
	}
	if err := repairLines(l.Path(EventsFile)); err != nil {
		return nil, fmt.Errorf("runlog: %w", err)
	}
	if err := files.RemoveTemporaries(dir, l.savedFiles()...); err != nil {
		return nil, fmt.Errorf("runlog: %w", err)
	}
	event := l.Event("resume", map[string]any{"rows_dropped": dropped, "rows_missing": step - l.steps()})
	if err := errors.Join(event, l.Save()); err != nil {
		return nil, err
	}
	return l, nil
}

// readTable reads the rows of the table up to the step of the checkpoint, and returns the number of later ones. It renames a damaged table and
// keeps the rows before the damage.
func (l *Log) readTable() (later int, err error) {
	path := l.Path(StepsFile)
	f, err := files.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	l.rows, later, err = readTable(f, l.resumedAfter)
	if closed := f.Close(); err == nil || errors.As(err, new(syscall.Errno)) { // a disk that fails is no damage
		return later, errors.Join(err, closed)
	}
	name, moved := files.SetAside(path)
	l.damaged = fmt.Errorf("runlog: %s: %w: %d rows before that are kept, and the file as %s", path, err, len(l.rows)+later, name)
	return later, moved
}

// Damaged returns what was wrong with the table of a resumed run: a damage, or rows that are missing at its end. It returns nil if it was
// whole.
func (l *Log) Damaged() error { return l.damaged }

func newLog(dir string, o Options, from int) (*Log, error) {
	now := time.Now()
	path, err := newEventFile(dir, now)
	if err != nil {
		return nil, fmt.Errorf("runlog: %w", err)
	}
	return &Log{
		dir: dir, options: o, resumedAfter: from,
		events:      appendFile{path: filepath.Join(dir, EventsFile)},
		tensorboard: appendFile{path: path, head: eventFileHead(from+1, now), ownFolder: true},
	}, nil
}

func (o Options) check() error {
	if !(o.BytesPerToken >= 0) || math.IsInf(o.BytesPerToken, 0) {
		return fmt.Errorf("runlog: %v bytes per token, want a number of at least 0", o.BytesPerToken)
	}
	return nil
}

// guard calls Options.Guard.
func (l *Log) guard() error {
	if l.options.Guard == nil {
		return nil
	}
	return l.options.Guard()
}

// Path returns the path of a file in the run folder.
func (l *Log) Path(name string) string { return filepath.Join(l.dir, name) }

// Last returns the last step recorded, or a Step of number 0 if there is none.
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
