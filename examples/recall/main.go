// Recall shows the purpose of the selected branch. It trains full NSA, NSA without its selected branch, and dense
// attention to look up values whose keys lie far back in a document. It writes the share of right answers as a table
// (CSV) and two plots (PNG), and a page (HTML) that shows which blocks NSA selects.
//
//	go run ./examples/recall -models nsa -free 1                       # a minute on two CPU cores
//	go run ./examples/recall                                           # all models, 1024 tokens, on two CPU cores
//	go run ./examples/recall -help                                     # other lengths, on a GPU
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/launch"
	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/internal/origin"
	"github.com/gorgonia-nsa/nsa/internal/terminal"
	"github.com/gorgonia-nsa/nsa/models/tinylm/recall"
)

func main() {
	command.Main("nothing is written",
		func(ctx context.Context, args []string) error { return run(ctx, args, terminal.Writer(os.Stdout)) })
}

// What -help says besides the flags.
const (
	about = "Recall shows the purpose of the selected branch. It trains full NSA, NSA without its selected branch, " +
		"and dense attention to look up values whose keys lie far back in a document. It writes the share of right " +
		"answers as a table (CSV) and two plots (PNG)."
	examples = `
		-context 16384 -device cuda:0 -precision bf16 # on a GPU
		-context 4096 -asked 65536 -device cuda:0 # asked far beyond the training
		-context 65536 -context-parallel 2 -device cuda:0,1 # documents over two GPUs`
)

// fieldFlags returns the flags whose names are not those of their fields.
func fieldFlags() map[string]string { return map[string]string{"Pairs": "needles"} }

// options are those of a command line. Options.Backend and Options.Group are not set.
type options struct {
	recall.Options
	task, other recall.Task // other has the documents of -asked
	kinds       []recall.Kind
	out, device string
	ranks       int // that share a document
	set         *flag.FlagSet
}

// fits returns an error unless the program can run on so many ranks.
func (o *options) fits(ranks int) error {
	if ranks != o.ranks {
		return command.UsageError(fmt.Errorf("-context-parallel %d on %d ranks: want as many", o.ranks, ranks))
	}
	return nil
}

// parse returns the options of a command line. After -help it writes the list of flags to help and returns
// flag.ErrHelp.
func parse(args []string, help io.Writer) (_ *options, err error) {
	o := &options{Options: recall.DefaultOptions(), set: command.NewFlags("examples/recall", about, examples)}
	defer command.Explain(&err, o.set, fieldFlags())
	tokens := o.set.Int("context", 1024, "tokens of a document")
	needles := o.set.Int("needles", 32, "pairs of a key and a value in a document, a multiple of 16")
	free := o.set.Int("free", 0, "blocks that NSA selects freely; 0: as many as have pairs, and 3 more")
	models := o.set.String("models", "nsa,nsa-without-selected,dense", "models to train")
	precision := o.set.String("precision", "f32", "f32 or bf16, on the CPU if it has AVX512_BF16")
	asked := o.set.Int("asked", 0,
		"tokens of other documents in which the trained models are asked too; 0: eight times -context")
	o.set.StringVar(&o.out, "out", "results/recall", "folder of the CSV file and the plots")
	o.set.StringVar(&o.device, "device", "cpu",
		"auto, cpu or cuda:N; cuda:0,1, cuda:all or cpu:N are several ranks; auto is the first GPU, or the CPU")
	o.set.IntVar(&o.ranks, "context-parallel", 1, "ranks that share each long document: all of -device")
	o.set.IntVar(&o.Steps, "steps", o.Steps, "steps of training")
	o.set.IntVar(&o.Rows, "rows", o.Rows,
		"rows of -context tokens in a step; documents are shorter at first, and share a row")
	o.set.IntVar(&o.EvalEvery, "eval-every", o.EvalEvery, "steps between two evaluations")
	o.set.Float64Var(&o.LR, "lr", o.LR, "highest learning rate")
	o.set.Uint64Var(&o.Seed, "seed", o.Seed, "of weights and documents")
	if err := command.Parse(o.set, args, help); err != nil {
		return nil, err
	}
	switch {
	case o.out == "":
		return nil, command.UsageError(errors.New("-out is empty"))
	case *asked < 0:
		return nil, command.UsageError(fmt.Errorf("-asked is %d, want 0 or more", *asked))
	case *free < 0:
		return nil, command.UsageError(fmt.Errorf("-free is %d, want 0 or more", *free))
	}
	var kindErr, taskErr, otherErr, precisionErr error
	if o.task, taskErr = recall.NewTask(*tokens, *needles); taskErr == nil {
		o.other, otherErr = recall.NewTask(cmp.Or(*asked, 8**tokens), *needles)
		if *asked > 0 {
			command.Explain(&otherErr, o.set, map[string]string{"Context": "asked", "Pairs": "needles"})
		} else if otherErr != nil {
			otherErr = fault.Between("Context", "without -asked, other documents are eight times as long: %s",
				fault.Text(otherErr))
		}
	}
	o.kinds, kindErr = recall.ParseKinds(*models)
	o.task.Free = cmp.Or(*free, o.task.Free)
	o.Precision, precisionErr = graph.ParsePrecision(*precision)
	return o, command.UsageError(cmp.Or(kindErr, taskErr, precisionErr, otherErr))
}

// run runs the program with the given arguments. It writes its progress to w.
func run(ctx context.Context, args []string, w io.Writer) (err error) {
	o, err := parse(args, w)
	if err != nil {
		return err
	}
	defer command.Explain(&err, o.set, fieldFlags())
	if launched, err := launch.Ranks(ctx, o.device, o.fits); launched {
		return err
	}
	group, device, err := launch.Join(ctx, o.device)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && ctx.Err() != nil { // another rank may have stopped before
			err = errors.Join(context.Cause(ctx), err)
		}
		group.Fail(err)
		_ = group.Close() // the work is done, also where another rank leaves too late
	}()
	if err := o.fits(group.Size()); err != nil {
		return err
	}
	if o.Group = group; group.Rank() > 0 {
		w = io.Discard
	}
	if o.Backend, err = cuda.Select(device); err != nil {
		return command.UsageError(command.Flag("device", o.device, err))
	}
	defer func() { err = errors.Join(err, o.Backend.Close()) }()
	if err := o.Validate(o.task); err != nil {
		return command.UsageError(err)
	}
	if err := o.Precision.Check(o.Backend.Device()); err != nil {
		return err
	}
	if group.Rank() == 0 {
		if err := files.MakeFolder(o.out); err != nil {
			return command.Flag("out", o.out, err)
		}
	}
	fmt.Fprintln(w, cuda.Describe(o.Backend))
	runs, err := recall.Compare(ctx, o.task, o.other, o.kinds, o.Options, w)
	if errors.Is(err, memory.ErrTooMuch) {
		err = fmt.Errorf("%w: reduce -rows, -context or -asked", err)
	}
	if err != nil || group.Rank() > 0 {
		return err
	}
	paths, err := recall.Report{Task: o.task, Runs: runs, Origin: o.originColumns()}.Save(o.out)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\nwrote %s\n", strings.Join(paths, "\n      "))
	return err
}

func (o *options) originColumns() []origin.Column {
	machine := origin.Processor()
	if d := o.Backend.Device(); !d.Host {
		machine = d.Name
	}
	cores := strconv.Itoa(runtime.GOMAXPROCS(0))
	return origin.Columns("examples/recall", o.set, origin.Column{Name: "machine", Value: machine},
		origin.Column{Name: "cores", Value: cores})
}
