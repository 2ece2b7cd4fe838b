package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/gofrs/flock"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/launch"
	"github.com/gorgonia-nsa/nsa/internal/origin"
	"github.com/gorgonia-nsa/nsa/internal/runlog"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/corpus"
)

// Result is the outcome of a run.
type Result struct {
	Folder      string        `json:"-"`
	Steps       int           `json:"steps"`
	Tokens      int64         `json:"tokens"`     // trained on
	Elapsed     time.Duration `json:"elapsed_ns"` // of the training, without the last evaluation and the sample
	Waits       int           `json:"waits"`      // steps that had to wait for data
	BestStep    int           `json:"best_step"`  // the step whose weights model.safetensors holds
	HeldOutLoss float64       `json:"held_out"`   // their loss on held-out data, nats per token; 0 without -final-eval
	BitsPerByte float64       `json:"bits_per_byte"`
	Sample      string        `json:"sample"` // text that these weights generate for the beginning of a document
}

// Run trains a model, or resumes a run if o comes from Parse with -resume, and shows the progress on w. Whatever is
// wrong with the arguments is an error before the first step, and no folder is made. When ctx ends, Run finishes its
// step and writes a checkpoint. It then returns *Interrupted after a signal (see OnSignals), else the cause of ctx.
// After another error the last checkpoint remains.
//
// A process that a launcher has started, such as Launch or torchrun (see dist.FromEnv), is a rank of a run of several.
// Rank 0 shows the progress, writes the folder and returns the Result; the others return nil.
func Run(ctx context.Context, o *Options, w io.Writer) (_ *Result, err error) {
	if ctx == nil || o == nil {
		return nil, errors.New("train: no context, or no options")
	}
	values := *o // flags writes to what it reads
	defer command.Explain(&err, values.flags(), fieldFlags())
	if err := o.Validate(); err != nil {
		return nil, err
	}
	g, device, err := launch.Join(ctx, o.Device)
	if err != nil {
		return nil, err
	}
	defer func() {
		fail(g, err)
		_ = g.Close() // the work is done, also where another rank leaves too late
	}()
	group := graph.Group(g)
	if o.hooks.group != nil {
		group = o.hooks.group(g)
	}
	b, err := cuda.Select(device)
	if err != nil {
		return nil, command.UsageError(command.Flag("device", o.Device, err))
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	return runOn(ctx, b, group, o, w)
}

// fail ends the job after an error of this rank. A signal has stopped all of them.
func fail(g graph.Group, err error) {
	if err != nil && !errors.As(err, new(*Interrupted)) {
		g.Fail(err)
	}
}

// runOn is Run on a backend and as a rank of a group, which it does not close. The group may be nil.
func runOn(ctx context.Context, b graph.Backend, g graph.Group, o *Options, w io.Writer) (_ *Result, err error) {
	r := &runner{Options: *o, backend: b, began: time.Now(), savedStep: -1}
	r.ranks, ctx = newRanks(ctx, g)
	if !r.leads() {
		w = io.Discard
	}
	r.display = newDisplay(w)
	_ = revision() // before there is a lock, which a child such as git could keep after the end of this process
	defer func() {
		if r.group != nil {
			fail(r.group, err) // before the models wait for other ranks
		}
		err = errors.Join(err, r.closers.Close())
	}()
	if err := r.open(ctx); err != nil {
		return nil, r.exitError(ctx, err)
	}
	result, err := r.trainAndFinish(ctx)
	if err != nil {
		err = r.exitError(ctx, err)
	}
	if !r.leads() {
		result = nil
	}
	return result, err
}

// revision returns the commit of the code.
var revision = sync.OnceValue(origin.Commit)

// exitError returns the error of a run that ended with err: after a signal an Interrupted, whatever the run did at that
// time.
func (r *runner) exitError(ctx context.Context, err error) error {
	err = r.withAdvice(err)
	s, ok := command.StopOf(ctx)
	if !ok {
		return fault.In("train", "", err)
	}
	stop := &Interrupted{Signal: s.Signal, Step: r.savedStep}
	if r.savedStep >= 0 {
		stop.Folder = string(r.folder)
	}
	if !errors.Is(err, s) && !errors.Is(err, ctx.Err()) {
		stop.Err = err
	}
	return stop
}

// runner is the work of one process on a run: a run that is resumed has a new one.
type runner struct {
	Options
	ranks

	// What it trains, and on what.
	backend    graph.Backend
	precision  graph.Precision
	corpus     *corpus.Corpus
	skipped    []corpus.Skipped // of the corpus, as it was said
	shape      corpus.Shape
	batches    int // of a step on this rank
	reader     *corpus.Reader
	memoryNeed memoryNeed
	toLower    string // advice on too little memory, if it is not the usual one
	weights    *tinylm.Weights
	model      *tinylm.Model // with gradients
	eval       *tinylm.Model
	solver     *optim.AdamW
	losses     *graph.AsyncReader
	norms      *graph.AsyncReader // nil before the first step

	// The state of the loop.
	state      state
	unread     []*microBatch // whose losses the host has not read
	savedStep  int           // the step of the last checkpoint, -1 for none
	saveFailed bool          // the last try to write a checkpoint failed
	tenths     int           // tenths of a run by time that were done at its last evaluation, or when this process began

	// The run folder, the record and the display.
	folder   folder
	held     *flock.Flock // of the folder
	log      *runlog.Log
	display  *display
	watchdog *watchdog
	history  []process

	// Clocks.
	began time.Time // when this process began the run
	start time.Time // of the training, as if it had never been stopped
	// when the latest step was known to have ended, or the first one began: the next rate is measured from here
	rateSince time.Time
	saveAt    time.Time // the next checkpoint, if no evaluation writes one before
	drawn     time.Time // when the curves were drawn last, or the run was opened

	// Warnings.
	lowestLoss float64 // lowest running mean of the loss
	diverged   bool    // the run has warned that the loss grows

	closers command.Closers
}

// phase shows what the run does now other than training.
func (r *runner) phase(what string) {
	r.display.phase(what)
	r.watchdog.phase(what)
}

// lastPhase is phase for work after the last step. Without a bar it also writes a line.
func (r *runner) lastPhase(what string) {
	r.phase(what)
	if !r.display.terminal {
		r.display.line("%s", what)
	}
}

// host reports whether the run is on the host, where a step has ended when its call returns.
func (r *runner) host() bool { return r.backend.Device().Host }

// progress returns the part of the run that is done, in [0, 1].
func (r *runner) progress() float64 {
	if r.Steps > 0 {
		return min(1, float64(r.state.Step)/float64(r.Steps))
	}
	return min(1, float64(time.Since(r.start))/float64(r.duration()))
}

// trainAndFinish trains, and finishes with the best weights.
func (r *runner) trainAndFinish(ctx context.Context) (res *Result, err error) {
	if err = r.train(ctx); err == nil {
		res, err = r.finish(ctx)
	} else {
		res = r.result()
	}
	r.display.end()
	if !r.leads() {
		return res, err
	}
	if folderErr := r.ownFolder(); folderErr != nil {
		r.warnIf(folderErr)
		return res, err
	}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		r.warnIf(r.log.Event("stop", map[string]any{"cause": context.Cause(ctx)}))
	default:
		r.warnIf(r.log.Event("error", map[string]any{"text": err.Error()}))
	}
	r.warnIf(errors.Join(r.log.Save(), r.draw()))
	return res, err
}

// action is what a run does next.
type action struct {
	What work
	At   int // of a step: its place in the schedule
}

type work int

const (
	takeStep work = iota
	evaluateWeights
	writeCheckpoint
	endTraining
)

// next returns what the run does next.
func (r *runner) next() action {
	switch {
	case r.progress() >= 1:
		return action{What: endTraining}
	case r.evaluationDue():
		return action{What: evaluateWeights}
	case r.saveDue():
		return action{What: writeCheckpoint}
	case r.Steps > 0:
		return action{At: r.state.Step}
	}
	return action{At: int(r.progress() * ticks)}
}

// train takes the steps, with the evaluations and checkpoints between them.
func (r *runner) train(ctx context.Context) error {
	for {
		do, err := decide(&r.ranks, "what to do next", r.next())
		switch {
		case err != nil:
			return err
		case do.What == endTraining:
			r.state.Elapsed = time.Since(r.start)
			return r.awaitAll()
		case ctx.Err() != nil:
			return r.stopped(ctx)
		case do.What == evaluateWeights:
			err = r.evaluate(ctx)
		case do.What == writeCheckpoint:
			err = r.trySave(ctx)
		default:
			if err = r.step(ctx, do.At); err == nil && r.hooks.stepped != nil {
				r.hooks.stepped(r.state.Step)
			}
		}
		switch {
		case err == nil || ctx.Err() != nil && errors.Is(err, ctx.Err()): // ctx ended while it waited for data
		case errors.As(err, new(*dataError)): // all steps so far are correct
			if saveErr := r.saveOrWait(ctx); saveErr != nil {
				err = fmt.Errorf("%w; %w", err, saveErr)
			}
			return fmt.Errorf("%w (%s)", err, r.resumeHint())
		default:
			return err
		}
	}
}

// stopped writes a checkpoint, unless the last step has one, and returns why ctx has ended.
func (r *runner) stopped(ctx context.Context) error {
	return cmp.Or(r.saveOrWait(context.WithoutCancel(ctx)), context.Cause(ctx))
}

// result returns the outcome as far as it is known before the last evaluation.
func (r *runner) result() *Result {
	res := &Result{Folder: string(r.folder), Steps: r.state.Step, Tokens: int64(r.state.Step * r.stepTokens()),
		Elapsed: r.state.Elapsed, Waits: r.reader.Waits()}
	if r.state.Best != nil {
		res.BestStep = r.state.Best.Step
	}
	return res
}

// finish evaluates the last weights, makes those of the best checkpoint the run's model, evaluates these, and samples
// from them.
func (r *runner) finish(ctx context.Context) (*Result, error) {
	if n := len(r.state.Evaluations); n == 0 || r.state.Evaluations[n-1].Step != r.state.Step {
		if err := r.evaluate(ctx); err != nil {
			return r.result(), err
		}
	}
	if ctx.Err() != nil {
		return r.result(), r.stopped(ctx)
	}
	if err := r.saveOrWait(ctx); err != nil {
		return r.result(), err
	}
	res := r.result()
	err := r.lead(ctx, "writing the model", func(context.Context) error { return r.writeBest(res) })
	if err == nil {
		res.BestStep, err = decide(&r.ranks, "the step of the model", res.BestStep)
	}
	if err == nil {
		err = r.together(ctx, "reading the model", func(context.Context) error {
			if r.leads() || res.BestStep == r.state.Step {
				return nil
			}
			return r.restore(res.BestStep)
		})
	}
	if err == nil && r.FinalEval > 0 {
		r.lastPhase("final evaluation")
		if res.HeldOutLoss, err = r.heldOut(ctx, r.FinalEval); err == nil {
			res.BitsPerByte = r.corpus.BitsPerByte(res.HeldOutLoss)
		}
	}
	if err == nil {
		err = r.lead(ctx, "the sample", func(ctx context.Context) error { return r.sampleAndDescribe(ctx, res) })
	}
	return res, err
}

// writeBest makes the weights of the best checkpoint the run's model.
func (r *runner) writeBest(res *Result) error {
	if res.BestStep != r.state.Step {
		if err := r.restore(res.BestStep); err == nil {
			r.display.line("the weights of step %d are the best on held-out data: they are the run's model", res.BestStep)
		} else {
			r.warn("the best weights, of step %d: %v: the run's model has those of the last step", res.BestStep, err)
			res.BestStep = r.state.Step
		}
	}
	if err := r.ownFolder(); err != nil {
		return err
	}
	return writeFinal(string(r.folder), r.weights)
}

func (r *runner) restore(step int) error {
	path := r.folder.checkpoint(step)
	if _, err := verifyCheckpoint(path); err != nil {
		return err
	}
	return r.weights.Restore(filepath.Join(path, modelFile))
}

// sampleAndDescribe is the end of finish, on one rank.
func (r *runner) sampleAndDescribe(ctx context.Context, res *Result) (err error) {
	if r.Sample > 0 {
		r.lastPhase("sampling")
		if res.Sample, err = r.sample(ctx); err != nil {
			return err
		}
	}
	r.showSkipped()
	r.warnIf(r.log.Event("end", map[string]any{"tokens": res.Tokens, "waits": res.Waits, "held_out": res.HeldOutLoss}))
	return r.describe(res)
}

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

// OnSignals returns a context that the first SIGINT, SIGTERM or SIGHUP ends, with a message on w. The second signal
// ends the program at once. A signal that is ignored already, by nohup or & in a script, stays ignored. A closed
// terminal or pipe does not end the program: writing to it is an error. stop undoes all of this.
func OnSignals(ctx context.Context, w io.Writer) (_ context.Context, stop func()) {
	return command.OnSignals(ctx, w, Stopping)
}

// Stopping says what a run does after a signal.
const Stopping = "this step is finished and a checkpoint written"
