// Package command has what the programs of this module share: they parse flags, describe themselves, stop at a signal,
// name wrong flags, release what they have opened and exit with a status alike.
package command

import (
	"context"
	"errors"
	"flag"
	"io"
	"log"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/gorgonia-nsa/nsa/internal/terminal"
)

// wrongUse is an error of the command line.
type wrongUse struct{ error }

func (w wrongUse) Unwrap() error { return w.error }
func (wrongUse) ExitCode() int   { return 2 }

// UsageError marks err, if it is not nil, as an error of the command line: the program exits with status 2.
func UsageError(err error) error {
	if err == nil {
		return nil
	}
	return wrongUse{err}
}

// Main runs a program with the arguments of the process and ends the process with its status. stopping says what the
// first signal does; if it is empty, a signal ends the program at once. After a closed pipe as output the program ends
// without a word.
func Main(stopping string, run func(ctx context.Context, args []string) error) {
	FitLog()
	ctx, stop := context.Background(), func() {}
	if stopping != "" {
		ctx, stop = OnSignals(ctx, os.Stderr, stopping)
	} else {
		signal.Ignore(syscall.SIGPIPE) // writing is an error instead
	}
	err := run(ctx, os.Args[1:])
	stop()
	os.Exit(ExitStatus(err, os.Stderr))
}

// FitLog makes the lines of packages log and slog fit the terminal of the standard error.
func FitLog() { log.SetOutput(logLines{}) }

type logLines struct{}

func (logLines) Write(line []byte) (int, error) {
	_, err := io.WriteString(os.Stderr, terminal.Wrap(string(line), terminal.Width(os.Stderr), 2))
	return len(line), err
}

// ExitStatus returns the status that a program exits with after err, and writes err to w: 0 without an error, after
// -help and after a closed pipe, as that of "| head", 2 after UsageError, 128 + n after signal n, and 1 after any other
// error. It does not write a Stop, which OnSignals has written.
func ExitStatus(err error, w io.Writer) int {
	var stop Stop
	var coded interface{ ExitCode() int }
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp) || closedPipe(err):
		return 0
	case errors.As(err, &stop):
		return stop.ExitCode()
	}
	terminal.Printf(w, "%v\n", err)
	if errors.As(err, &coded) {
		return coded.ExitCode()
	}
	return 1
}

// closedPipe reports whether err is that of writing to a closed pipe and, if it joins several errors, each of them is.
func closedPipe(err error) bool {
	for {
		switch e := err.(type) {
		case interface{ Unwrap() []error }:
			return !slices.ContainsFunc(e.Unwrap(), func(err error) bool { return !closedPipe(err) })
		case interface{ Unwrap() error }:
			err = e.Unwrap()
		default:
			return err == syscall.EPIPE
		}
	}
}

// Closers are the functions that release what a program has opened.
type Closers []func() error

// Add adds a function.
func (c *Closers) Add(f func() error) { *c = append(*c, f) }

// Close calls the functions in reverse order and returns all of their errors. A second Close calls none.
func (c *Closers) Close() (err error) {
	for _, f := range slices.Backward(*c) {
		err = errors.Join(err, f())
	}
	*c = nil
	return err
}
