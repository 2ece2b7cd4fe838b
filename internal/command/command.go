// Package command has what the programs of this module share: they parse flags, stop at a signal, release what they have opened and exit with a status alike.
package command

import (
	"errors"
	"flag"
	"fmt"
	"io"
)

// wrongUse is an error of the command line.
type wrongUse struct{ error }

func (w wrongUse) Unwrap() error { return w.error }
func (wrongUse) ExitCode() int   { return 2 }

// WrongUse marks err, if it is not nil, as an error of the command line: the program exits with status 2.
func WrongUse(err error) error {
	if err == nil {
		return nil
	}
	return wrongUse{err}
}

// Parse parses the arguments of a program that takes flags alone. After -help it writes the list of flags to help and returns
// flag.ErrHelp. Any other error is one line and marked by WrongUse.
func Parse(set *flag.FlagSet, args []string, help io.Writer) error {
	set.SetOutput(io.Discard)
	err := set.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		set.SetOutput(help)
		set.PrintDefaults()
		return err
	case err == nil && set.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	if err != nil {
		return WrongUse(fmt.Errorf("%s: %w (-help lists all flags)", set.Name(), err))
	}
	return nil
}

// ExitStatus returns the status that a program exits with after err, and writes err to w: 0 without an error and after -help, 2 after
// WrongUse, 128 + n after signal n, and 1 after any other error. It does not write a Stop, which OnSignals has written.
func ExitStatus(err error, w io.Writer) int {
	var stop Stop
	var coded interface{ ExitCode() int }
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &stop):
		return stop.ExitCode()
	}
	fmt.Fprintln(w, err)
	if errors.As(err, &coded) {
		return coded.ExitCode()
	}
	return 1
}
