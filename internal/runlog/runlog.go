// Package runlog keeps the record of a training run in a folder: a table of its steps as CSV and a plot of its losses as
// PNG. A file is written aside and renamed, so that it is either whole or as it was before.
package runlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/moby/sys/atomicwriter"
)

// Names of the files in a run folder.
const (
	StepsFile = "steps.csv"
	PlotFile  = "loss.png"
)

// Step is one training step.
type Step struct {
	Number       int     // from 1
	Loss         float64 // nats a token, on the step's own batch, before the step
	LR           float64
	GradNorm     float64 // global, before clipping
	TokensPerSec float64
	HeldOut      float64 // loss after the step on data that is not trained on; 0 if it was not taken
}

// Log is the record of one run. The zero value is empty and has no folder: Save writes nothing. Create gives one.
type Log struct {
	Steps []Step

	dir, title string
}

// Create makes the run folder dir, with its parents, and the files of an empty log in it. It is an error if one of an earlier
// run would be replaced: those of the log, and those of the names in others. title is the plot's.
func Create(dir, title string, others ...string) (*Log, error) {
	for _, name := range append([]string{StepsFile, PlotFile}, others...) {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return nil, fmt.Errorf("runlog: %s holds %s of an earlier run", dir, name)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("runlog: %w", err)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("runlog: %w", err)
	}
	l := &Log{dir: dir, title: title}
	return l, l.Save()
}

// Path returns the path of a file in the run folder.
func (l *Log) Path(name string) string { return filepath.Join(l.dir, name) }

// Save writes the table and the plot, where there is a folder.
func (l *Log) Save() error {
	if l.dir == "" {
		return nil
	}
	err := atomicwriter.WriteFile(l.Path(StepsFile), l.table(), 0o644) // first: a plot that fails does not lose the table
	plot, plotErr := l.plot()
	if err = errors.Join(err, plotErr); err == nil {
		err = atomicwriter.WriteFile(l.Path(PlotFile), plot, 0o644)
	}
	if err != nil {
		return fmt.Errorf("runlog: %s: %w", l.dir, err)
	}
	return nil
}

// table returns the steps as CSV, one row each.
func (l *Log) table() []byte {
	b := []byte("step,loss,lr,grad_norm,tokens_per_second,held_out_loss\n")
	for _, s := range l.Steps {
		b = fmt.Appendf(b, "%d,%.7g,%.7g,%.7g,%.0f,", s.Number, s.Loss, s.LR, s.GradNorm, s.TokensPerSec)
		if s.HeldOut != 0 {
			b = fmt.Appendf(b, "%.7g", s.HeldOut)
		}
		b = append(b, '\n')
	}
	return b
}
