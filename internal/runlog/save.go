package runlog

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/moby/sys/atomicwriter"
)

// flush writes what has been added to the files that grow.
func (l *Log) flush() error {
	if l.dir == "" {
		l.events.pending, l.board.pending = nil, nil
		return nil
	}
	if err := errors.Join(l.events.flush(), l.board.flush()); err != nil {
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
	err := l.flush()
	l.mu.Unlock()

	err = errors.Join(err, l.events.sync(), l.board.sync())
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
