package command

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/gorgonia-nsa/nsa/internal/terminal"
)

// Stop is the cause of a context that a signal has ended.
type Stop struct{ Signal syscall.Signal }

func (s Stop) Error() string { return s.Signal.String() }

// ExitCode returns what a program that the signal has ended leaves with by convention.
func (s Stop) ExitCode() int { return 128 + int(s.Signal) }

// StopOf returns the signal that has ended a context, if one has.
func StopOf(ctx context.Context) (s Stop, ok bool) {
	ok = errors.As(context.Cause(ctx), &s)
	return s, ok
}

// OnSignals returns a context that SIGINT, SIGTERM and SIGHUP end. The first signal ends the context and prints message
// on w; the second ends the program. Those that are ignored when it is called stay ignored: SIGHUP by nohup, SIGINT in
// what a script starts with &. A closed terminal or pipe becomes an error of writing to it and does not end the
// program. Those of without are left alone. stop undoes all of this.
func OnSignals(ctx context.Context, w io.Writer, message string, without ...os.Signal) (_ context.Context,
	stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	arrived := make(chan os.Signal, 1)
	// Reset below gives a signal back its action at the start of the program: a second one that was ignored then would
	// not end it.
	stops := slices.DeleteFunc([]os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP},
		func(s os.Signal) bool { return signal.Ignored(s) || slices.Contains(without, s) })
	if len(stops) > 0 { // Notify and Reset of none are of all signals
		signal.Notify(arrived, stops...)
	}
	signal.Ignore(syscall.SIGPIPE)
	go func() {
		select {
		case s := <-arrived:
			signal.Reset(stops...)
			if os.Getenv("NSA_DDP_PARENT") == "" { // else the process that started this rank says it
				terminal.Printf(w, "\n%v: %s; a second one leaves at once\n", s, message)
			}
			cancel(Stop{s.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		signal.Reset(append(stops, syscall.SIGPIPE)...)
	}
}

// Interrupts returns a channel of the SIGINT that come from now on, unless it is ignored. end gives it back its effect.
func Interrupts() (_ <-chan os.Signal, end func()) {
	arrived := make(chan os.Signal, 1)
	if !signal.Ignored(syscall.SIGINT) {
		signal.Notify(arrived, syscall.SIGINT)
	}
	return arrived, func() { signal.Stop(arrived) }
}
