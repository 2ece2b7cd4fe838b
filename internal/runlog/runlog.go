// Package runlog keeps the record of a training run in a folder: a table of its steps as CSV and a plot of its losses as
// PNG. A file is written aside and renamed, so that it is either whole or as it was before.
package runlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
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
	Step         int     // from 1
	Loss         float64 // nats a token, on the step's own batch, before the step
	LR           float64
	GradNorm     float64 // global, before clipping
	TokensPerSec float64
}

// HeldOut is one evaluation on data that is not trained on.
type HeldOut struct {
	Step int // steps taken before it
	Loss float64
}

// Log is the record of one run. The zero value is empty and has no folder: Save writes nothing. Create gives one.
type Log struct {
	Steps   []Step
	HeldOut []HeldOut

	dir, title string
}

// Create makes the run folder dir, with its parents, and checks that files can be written there and that none of an earlier
// run would be replaced: its own, and those of the names in others. title is the plot's.
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
	probe, err := os.CreateTemp(dir, ".probe.*.tmp")
	if err != nil {
		return nil, fmt.Errorf("runlog: run folder can not be written: %w", err)
	}
	if err := errors.Join(probe.Close(), os.Remove(probe.Name())); err != nil {
		return nil, fmt.Errorf("runlog: %w", err)
	}
	return &Log{dir: dir, title: title}, nil
}

// Path returns the path of a file in the run folder.
func (l *Log) Path(name string) string { return filepath.Join(l.dir, name) }

// Save writes the table and the plot, where there is a folder.
func (l *Log) Save() error {
	if l.dir == "" {
		return nil
	}
	for _, f := range []struct {
		name    string
		content func(io.Writer) error
	}{{StepsFile, l.writeCSV}, {PlotFile, l.writePlot}} {
		var b bytes.Buffer
		err := f.content(&b)
		if err == nil {
			err = atomicwriter.WriteFile(l.Path(f.name), b.Bytes(), 0o644)
		}
		if err != nil {
			return fmt.Errorf("runlog: %s: %w", l.Path(f.name), err)
		}
	}
	return nil
}

// writeCSV writes one row a step; the held-out loss stands in the row of the step after which it was taken.
func (l *Log) writeCSV(w io.Writer) error {
	heldOut := make(map[int]float64, len(l.HeldOut))
	for _, h := range l.HeldOut {
		heldOut[h.Step] = h.Loss
	}
	fmt.Fprintln(w, "step,loss,lr,grad_norm,tokens_per_second,held_out_loss")
	for _, s := range l.Steps {
		fmt.Fprintf(w, "%d,%.7g,%.7g,%.7g,%.0f,", s.Step, s.Loss, s.LR, s.GradNorm, s.TokensPerSec)
		if v, ok := heldOut[s.Step]; ok {
			fmt.Fprintf(w, "%.7g", v)
		}
		fmt.Fprintln(w)
	}
	return nil
}
