package runlog

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gorgonia-nsa/nsa/internal/files"
)

// flush writes the pending bytes of the appended files.
func (l *Log) flush() error {
	if l.dir == "" {
		l.events.pending, l.tensorboard.pending = nil, nil
		return nil
	}
	if len(l.events.pending)+len(l.tensorboard.pending) == 0 {
		return nil
	}
	err := l.guard()
	if err == nil {
		err = errors.Join(l.events.flush(), l.tensorboard.flush())
	}
	if err != nil {
		return fmt.Errorf("runlog: %w", err)
	}
	return nil
}

// Save rewrites the table and syncs the appended files. Steps may be recorded meanwhile.
func (l *Log) Save() error {
	if l.dir == "" {
		return nil
	}
	l.saving.Lock()
	defer l.saving.Unlock()
	l.mu.Lock()
	rows := slices.Clone(l.rows)
	err := l.flush()
	l.mu.Unlock()
	return errors.Join(err, l.events.sync(), l.tensorboard.sync(), l.write(StepsFile, table(rows, l.options.BytesPerToken)))
}

// Draw redraws the curves. Steps may be recorded meanwhile.
func (l *Log) Draw() (err error) {
	if l.dir == "" {
		return nil
	}
	l.saving.Lock()
	defer l.saving.Unlock()
	l.mu.Lock()
	rows := slices.Clone(l.rows)
	l.mu.Unlock()
	if len(rows) == 0 {
		return nil
	}
	for _, c := range curves() {
		png, drawn := c.draw(rows, l.options)
		if drawn == nil {
			drawn = l.write(c.file, png)
		}
		err = errors.Join(err, drawn)
	}
	return err
}

// write replaces a file.
func (l *Log) write(name string, content []byte) error {
	err := l.guard()
	if err == nil {
		err = files.Write(l.Path(name), content)
	}
	if err != nil {
		return fmt.Errorf("runlog: %w", err)
	}
	return nil
}

// savedFiles returns the names of the files that Save and Draw replace.
func (l *Log) savedFiles() []string {
	names := []string{StepsFile}
	for _, c := range curves() {
		names = append(names, c.file)
	}
	return names
}
