package train

import (
	"context"
	"fmt"
	"io"
	"syscall"

	"github.com/gorgonia-nsa/nsa/internal/command"
)

// Interrupted is the error of a run that a signal has stopped. Parse with -resume continues from its checkpoint.
type Interrupted struct {
	Signal syscall.Signal
	Folder string // of the run; empty: it has no checkpoint
	Step   int    // of the newest checkpoint
	Err    error  // why that is not the last step, or nil
}

func (e *Interrupted) Error() string {
	text := fmt.Sprintf("train: stopped by %v before the first checkpoint", e.Signal)
	if e.Folder != "" {
		text = fmt.Sprintf("train: stopped by %v after step %d; continue with -resume %s", e.Signal, e.Step, e.Folder)
	}
	if e.Err != nil {
		text += fmt.Sprintf(" (%v)", e.Err)
	}
	return text
}

func (e *Interrupted) Unwrap() error { return e.Err }

// ExitCode returns the conventional exit code of a program that this signal has ended.
func (e *Interrupted) ExitCode() int { return command.Stop{Signal: e.Signal}.ExitCode() }

// OnSignals returns a context that the first SIGINT, SIGTERM or SIGHUP ends, with a message on w. The second signal ends the program at
// once. A signal that is ignored already, by nohup or & in a script, stays ignored. A closed terminal or pipe does not end the program: writing to it is an error. stop undoes all of this.
func OnSignals(ctx context.Context, w io.Writer) (_ context.Context, stop func()) {
	return command.OnSignals(ctx, w, Stopping)
}

// Stopping says what a run does after a signal.
const Stopping = "this step is finished and a checkpoint written"
