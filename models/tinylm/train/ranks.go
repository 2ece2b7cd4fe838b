package train

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/gather"
	"github.com/gorgonia-nsa/nsa/internal/launch"
)

// Launch runs this program again with its own arguments, once for each device of o.Device, if that names several and no
// launcher has started this process: the processes are the ranks of one run, and this one only waits for them. launched
// reports whether it did so. When ctx ends, the ranks finish their step and write a checkpoint. See dist.Launch.
func Launch(ctx context.Context, o *Options) (launched bool, err error) {
	if ctx == nil || o == nil {
		return false, errors.New("train: no context, or no options")
	}
	launched, err = launch.Ranks(ctx, o.Device, func(ranks int) error {
		_, _, err := o.cut(ranks)
		return err
	})
	return launched, fault.In("train", "", err)
}

// ranks are the processes of a run, and what they tell each other. The zero value is a run of one process.
type ranks struct {
	group graph.Group             // nil for one process
	outer context.Context         // of this process
	stop  context.CancelCauseFunc // of the context of the run: the ranks agree on when it ends
}

// newRanks returns the ranks of a group and the context of their run, which ends on all of them between the same two
// steps when that of one process has ended.
func newRanks(ctx context.Context, g graph.Group) (ranks, context.Context) {
	if g == nil || g.Size() == 1 {
		return ranks{}, ctx
	}
	r := ranks{group: g, outer: ctx}
	ctx, r.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	return r, ctx
}

func (r *ranks) rank() int {
	if r.group == nil {
		return 0
	}
	return r.group.Rank()
}

func (r *ranks) size() int {
	if r.group == nil {
		return 1
	}
	return r.group.Size()
}

// parts returns the number of parts of the ranks, and that of this rank: -context-parallel ranks share each batch.
func (r *runner) parts() (n, own int) {
	return r.size() / r.ContextParallel, r.rank() / r.ContextParallel
}

// leads reports whether this rank decides, shows the progress and writes the run folder.
func (r *ranks) leads() bool { return r.rank() == 0 }

// message is what a rank sends to all: a value, and why its process has to stop.
type message[T any] struct {
	Signal syscall.Signal `json:",omitempty"`
	Cause  string         `json:",omitempty"`
	Value  T
}

// share sends a value to all ranks and returns those of all, by rank. All ranks call it in the same order. If the process
// of one has to stop, the contexts of all runs have ended afterwards.
func share[T any](r *ranks, what string, own T) ([]T, error) {
	if r.group == nil {
		return []T{own}, nil
	}
	m := message[T]{Value: own}
	if r.outer.Err() != nil {
		m.Cause = context.Cause(r.outer).Error()
		if s, ok := command.StopOf(r.outer); ok {
			m.Signal = s.Signal
		}
	}
	messages, err := gather.JSON(r.group, what, m)
	if err != nil {
		return nil, err
	}
	all := make([]T, len(messages))
	for rank, theirs := range messages {
		all[rank] = theirs.Value
		switch {
		case theirs.Signal != 0:
			r.stop(command.Stop{Signal: theirs.Signal})
		case theirs.Cause != "" && rank == r.rank():
			r.stop(context.Cause(r.outer))
		case theirs.Cause != "":
			r.stop(fmt.Errorf("rank %d: %s", rank, theirs.Cause))
		}
	}
	return all, nil
}

// decide returns the choice of rank 0.
func decide[T any](r *ranks, what string, choice T) (T, error) {
	all, err := share(r, what, choice)
	if err != nil {
		return choice, err
	}
	return all[0], nil
}

// signEvery is the time between the signs that a rank gives while it works alone.
const signEvery = time.Second

// together runs f on all ranks and returns when all have ended. It may take as long as it likes: no deadline counts. An
// error of a rank is one of all. The context of f ends with ctx, and when the job fails.
func (r *ranks) together(ctx context.Context, what string, f func(context.Context) error) error {
	if r.group == nil {
		return f(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	type state struct {
		Ended bool
		Err   string
	}
	var own error
	for mine := (state{}); ; {
		if !mine.Ended {
			select {
			case own = <-ended:
				if mine.Ended = true; own != nil {
					mine.Err = own.Error()
				}
			case <-time.After(signEvery):
			}
		}
		all, err := share(r, what, mine)
		if err != nil {
			if cancel(err); !mine.Ended {
				own = <-ended
			}
			return cmp.Or(own, err)
		}
		if slices.ContainsFunc(all, func(s state) bool { return !s.Ended }) {
			continue
		}
		return errorOf(own, all, func(s state) string { return s.Err })
	}
}

// errorOf returns the error of this rank, or else the first one of what all ranks have sent; text returns its text.
func errorOf[T any](own error, all []T, text func(T) string) error {
	for rank, theirs := range all {
		if t := text(theirs); t != "" && own == nil {
			own = fmt.Errorf("rank %d: %s", rank, t)
		}
	}
	return own
}

// lead is together for work of rank 0 alone.
func (r *ranks) lead(ctx context.Context, what string, f func(context.Context) error) error {
	return r.together(ctx, what, func(ctx context.Context) error {
		if !r.leads() {
			return nil
		}
		return f(ctx)
	})
}

// agree compares what must be equal on all ranks: the code, the data, the model, and all options but the names of files
// and devices.
func (r *runner) agree() error {
	if r.group == nil {
		return nil
	}
	facts := map[string]string{"code": revision(), "data": r.corpus.Hash(), "step to begin after": strconv.Itoa(r.state.Step),
		"device": r.backend.Device().Kind}
	fields := optionFields()
	r.flags().VisitAll(func(f *flag.Flag) {
		switch f.Name {
		case "data", "eval-data", "tokenizer", "init", "device", "out":
		default:
			if _, option := fields[f.Name]; option {
				facts["-"+f.Name] = f.Value.String()
			}
		}
	})
	return graph.Agree(r.group, facts)
}

// cut returns how many batches a step has on each of n ranks, and how many windows a batch has. A step has -accumulate
// batches of -batch windows in all, those of one rank after those of another: batch i·n + r is the i-th of rank r. Where
// the ranks cannot share the batches evenly, as after a run on another number of ranks, the batches are smaller. With
// -context-parallel the ranks of a part count as one.
func (o *Options) cut(n int) (batches, windows int, err error) {
	if n%o.ContextParallel != 0 {
		return 0, 0, command.UsageError(fmt.Errorf("-context-parallel %d on %d ranks: want a number that divides them",
			o.ContextParallel, n))
	}
	n /= o.ContextParallel
	all := cmp.Or(o.Accumulate, n) * o.Batch
	if all%n != 0 {
		return 0, 0, command.UsageError(fmt.Errorf("-accumulate %d batches of -batch %d windows: "+
			"want a step that %d ranks can share", o.Accumulate, o.Batch, n))
	}
	windows = gcd(o.Batch, all/n)
	return all / n / windows, windows, nil
}

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}
