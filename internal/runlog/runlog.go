// Package runlog writes the record of a training run to its folder during the run:
//
//	steps.csv                            every step, one row each
//	events.jsonl                         events, one JSON object a line, with the metrics of a step every ten seconds
//	loss.png, lr.png, grad_norm.png, rate.png
//	tensorboard/events.out.tfevents.*    scalars for TensorBoard, a file for each start
//
// Save writes the table and Draw the curves. They write each file under another name, sync it and rename it, so that it
// is either complete or as it was before. Lines and scalars are appended at once: if the process is killed, at most the
// last one is torn.
//
// If a write fails, on a full disk or without the folder, Event, HeldOut and Save return the error. The data stay in
// memory, and the next of these calls tries again.
package runlog

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/files"
)

// Names of the files in a run folder.
const (
	StepsFile  = "steps.csv"
	EventsFile = "events.jsonl"
)

// Step is one training step.
type Step struct {
	Number       int       // from 1
	Time         time.Time // when it ended
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
	RelativeError bool    // losses are relative errors, not nats, and have no perplexity

	// Guard, if not nil, is called before each write to the folder. If it returns an error, nothing is written, as if the
	// write had failed.
	Guard func() error
}

// Log is the record of one run. Only one goroutine may use it at a time.
type Log struct {
	dir          string
	options      Options
	damaged      error // what was wrong with the table when the run was resumed
	rows         []row // ascending by number
	resumedAfter int   // the run was resumed after this step
	events       appendFile
	tensorboard  appendFile

	lastTensorboard time.Time // of the last step in tensorboard
	lastLine        time.Time // of the last step in events
	lossSum         float64   // of the steps since then
	lossCount       int
}

// Create makes the run folder dir, its parents as needed, and the files of an empty record in it. If dir exists
// already, the error wraps fs.ErrExist: of two runs that start at once with the same name, one fails.
func Create(dir string, o Options) (_ *Log, err error) {
	defer fault.Name(&err, "runlog", "")
	dir = filepath.Clean(dir) // with a slash at its end, it would be its own parent
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o755); errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("a new run needs a new folder: %w", err)
	} else if err != nil {
		return nil, err
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

// Resume opens the record in the run folder dir and continues after the given step, that of a checkpoint; 0 is the
// beginning. It drops the rows of later steps, which the run took before it was killed, from the table. If the table is
// damaged or ends before step, it keeps the rows that are there: see Damaged. It cuts off a torn last line of
// events.jsonl and removes temporary files. The event "resume" records the number of rows dropped and of rows missing
// up to step. No rows are missing if the run called Save before it wrote the checkpoint.
func Resume(dir string, step int, o Options) (_ *Log, err error) {
	defer fault.Name(&err, "runlog", "")
	l, err := newLog(dir, o, step)
	if err != nil {
		return nil, err
	}
	dropped, err := l.readTable()
	if err != nil {
		return nil, err
	}
	taken, last := 0, 0
	for _, r := range l.rows {
		if !r.onlyHeldOut {
			taken, last = taken+1, r.Number
		}
	}
	if last < step && l.damaged == nil {
		l.damaged = fmt.Errorf("runlog: %s: its last row is of step %d, want %d: the rows between are lost",
			l.path(StepsFile), last, step)
	}
	temporary := []string{StepsFile}
	for _, c := range curves() {
		temporary = append(temporary, c.file)
	}
	if err := cmp.Or(repairLines(l.path(EventsFile)), files.RemoveTemporaries(dir, temporary...)); err != nil {
		return nil, err
	}
	event := l.Event("resume", map[string]any{"rows_dropped": dropped, "rows_missing": step - taken})
	if err := errors.Join(event, l.Save()); err != nil {
		return nil, err
	}
	return l, nil
}

func newLog(dir string, o Options, from int) (*Log, error) {
	now := time.Now()
	path, err := newEventFile(dir, now)
	return &Log{
		dir: dir, options: o, resumedAfter: from,
		events:      appendFile{path: filepath.Join(dir, EventsFile)},
		tensorboard: appendFile{path: path, head: eventFileHead(from+1, now), ownFolder: true},
	}, err
}

// readTable reads the rows of the table up to the step of the checkpoint, and returns the number of later ones. It
// renames a damaged table and keeps the rows before the damage.
func (l *Log) readTable() (later int, err error) {
	path := l.path(StepsFile)
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
	l.damaged = fmt.Errorf("runlog: %s: %w: %d rows before that are kept, and the file as %s", path, err,
		len(l.rows)+later, name)
	return later, moved
}

// Damaged returns what was wrong with the table of a resumed run: a damage, or rows that are missing at its end. It
// returns nil if it was whole.
func (l *Log) Damaged() error { return l.damaged }

// path returns the path of a file in the run folder.
func (l *Log) path(name string) string { return filepath.Join(l.dir, name) }
