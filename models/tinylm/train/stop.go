package train

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Interrupted is the error of a run that a signal has stopped. Its checkpoint is written: Parse with -resume goes on.
type Interrupted struct {
	Signal syscall.Signal
	Folder string // of the run
	Step   int    // that the checkpoint holds
}

func (e *Interrupted) Error() string {
	return fmt.Sprintf("train: stopped by %v after step %d; go on with -resume %s", e.Signal, e.Step, e.Folder)
}

// ExitCode returns what a program that a signal has ended leaves with by convention.
func (e *Interrupted) ExitCode() int { return 128 + int(e.Signal) }

// stopSignal is the cause of a context that a signal has ended.
type stopSignal struct{ signal syscall.Signal }

func (s stopSignal) Error() string { return s.signal.String() }

// OnSignals returns a context that the first SIGINT, SIGTERM or SIGHUP ends. It says so on w; the second one ends the program at
// once. A closed terminal or pipe becomes an error of writing to it and does not end the program. stop undoes all of this.
func OnSignals(ctx context.Context, w io.Writer) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	arrived := make(chan os.Signal, 1)
	stops := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // by nohup
		stops = append(stops, syscall.SIGHUP)
	}
	signal.Notify(arrived, stops...)
	signal.Ignore(syscall.SIGPIPE)
	go func() {
		select {
		case s := <-arrived:
			signal.Reset(stops...)
			fmt.Fprintf(w, "\n%v: this step is finished and a checkpoint written; a second one leaves at once\n", s)
			cancel(stopSignal{s.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		signal.Reset(append(stops, syscall.SIGPIPE)...)
	}
}
