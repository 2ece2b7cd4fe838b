// Recall shows the purpose of the selected branch. It trains full NSA, NSA without its selected branch, and dense attention to look up
// values whose keys lie far back in a document. It writes the share of right answers as a table (CSV) and two plots (PNG).
//
//	go run ./examples/recall                                                             # 1024 tokens, on two CPU cores
//	go run ./examples/recall -context 16384 -device cuda:0 -precision bf16               # on a GPU
//	go run ./examples/recall -context 4096 -asked 65536 -device cuda:0 -precision bf16   # asked far beyond the training
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
	"time"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/origin"
	"github.com/gorgonia-nsa/nsa/internal/signals"
	"github.com/gorgonia-nsa/nsa/models/tinylm/recall"
)

func main() {
	ctx, stop := signals.Context(context.Background(), os.Stderr, "nothing is written")
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	switch s, ok := signals.Of(ctx); {
	case err == nil || errors.Is(err, flag.ErrHelp):
	case ok && errors.Is(err, s):
		os.Exit(s.ExitCode())
	default:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run runs the program with the given arguments. It writes its progress to w.
func run(ctx context.Context, args []string, w io.Writer) (err error) {
	o := recall.DefaultOptions()
	set := flag.NewFlagSet("recall", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	var (
		tokens    = set.Int("context", 1024, "tokens of a document")
		needles   = set.Int("needles", 32, "pairs of a key and a value in a document, a multiple of 16")
		asked     = set.Int("asked", 0, "tokens of longer documents, in which the trained models are asked too; 0: eight times -context")
		models    = set.String("models", "nsa,nsa-without-selected,dense", "models to train")
		out       = set.String("out", "results/recall", "folder of the CSV file and the plots")
		device    = set.String("device", "cpu", "cpu, cuda:N, or auto for the first GPU if there is one")
		precision = set.String("precision", "f32", "f32 or bf16; the CPU computes in f32")
	)
	set.IntVar(&o.Steps, "steps", o.Steps, "steps of training")
	set.IntVar(&o.Rows, "rows", o.Rows, "rows of -context tokens in a step; documents are shorter at first, and share a row")
	set.Float64Var(&o.LR, "lr", o.LR, "highest learning rate")
	set.Uint64Var(&o.Seed, "seed", o.Seed, "of weights and documents")
	switch err := set.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		set.SetOutput(w)
		set.PrintDefaults()
		return err
	case err != nil:
		return fmt.Errorf("recall: %w (-help lists all)", err)
	case set.NArg() > 0:
		return fmt.Errorf("recall: unexpected argument %q", set.Arg(0))
	}
	if *asked < 0 {
		return fmt.Errorf("recall: -asked is %d, want 0 or more", *asked)
	}
	kinds, err := recall.ParseKinds(*models)
	if err != nil {
		return err
	}
	task, err := recall.NewTask(*tokens, *needles)
	if err != nil {
		return err
	}
	if o.Precision, err = graph.ParsePrecision(*precision); err != nil {
		return err
	}
	if o.Backend, err = cuda.Select(*device); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Backend.Close()) }()
	if err := recall.MakeFolder(*out); err != nil {
		return err
	}
	fmt.Fprintln(w, cuda.Describe(o.Backend))
	runs, err := recall.Compare(ctx, task, kinds, o, cmp.Or(*asked, 8**tokens), w)
	if err != nil {
		return err
	}
	paths, err := recall.Report{Task: task, Runs: runs, Host: host(set, o.Backend)}.Save(*out)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\nwrote %s\n", strings.Join(paths, ", "))
	return err
}

// host returns the columns that describe the origin of the numbers.
func host(set *flag.FlagSet, b graph.Backend) [][2]string {
	command := "go run ./examples/recall"
	set.Visit(func(f *flag.Flag) {
		if f.Name != "out" { // the output folder does not affect the measurement
			command += fmt.Sprintf(" -%s %v", f.Name, f.Value)
		}
	})
	machine := origin.Processor()
	if d := b.Device(); !d.Host {
		machine = d.Name
	}
	return [][2]string{
		{"date", time.Now().UTC().Format(time.DateOnly)}, {"commit", origin.Commit()}, {"machine", machine},
		{"cores", strconv.Itoa(runtime.GOMAXPROCS(0))}, {"go", runtime.Version()}, {"command", command},
	}
}
