// Inspect shows how a trained TinyLM works on a text: which blocks each query selects, the gates, how far back the
// attention of each branch goes, the loss of each token, and the graph. It writes pictures and one HTML page, which
// needs no network.
//
//	go run ./examples/train -out runs/tiny
//	go run ./examples/inspect -model runs/tiny
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/internal/saved"
	"github.com/gorgonia-nsa/nsa/internal/terminal"
	"github.com/gorgonia-nsa/nsa/models/tinylm/corpus"
	"github.com/gorgonia-nsa/nsa/models/tinylm/inspect"
)

func main() {
	command.Main("", func(_ context.Context, args []string) error { return run(args, os.Stdout) })
}

// What -help says besides the flags.
const (
	about = "Inspect shows how a trained TinyLM works on a text: which blocks each query selects, the gates, how far " +
		"back the attention of each branch goes, the loss of each token, and the graph. It writes pictures and one " +
		"HTML page, which needs no network."
	examples = `
		-model runs/tiny # a run of examples/train
		-model runs/tiny -file story.txt -tokens 2000 # on a text of your own`
)

type options struct {
	model, tokenizer, text, file, out, device string
	tokens, layer                             int
	set                                       *flag.FlagSet
}

// parse returns the options of a command line. After -help it writes the list of flags to help and returns
// flag.ErrHelp.
func parse(args []string, help io.Writer) (_ *options, err error) {
	set := command.NewFlags("examples/inspect", about, examples)
	o := &options{set: set}
	defer command.Explain(&err, set, nil)
	set.StringVar(&o.model, "model", "", "run folder, checkpoint or file of weights")
	set.StringVar(&o.tokenizer, "tokenizer", "", "tokenizer.json of the model; empty: that of its run")
	set.StringVar(&o.text, "text", "", "text to run")
	set.StringVar(&o.file, "file", "", "file of the text, in place of -text; without both it is a small Go program")
	set.StringVar(&o.out, "out", "inspect", "folder to write to, which is made; not a run's folder")
	set.StringVar(&o.device, "device", "auto", "auto, cpu or cuda:N; auto is the first GPU, or the CPU")
	set.IntVar(&o.tokens, "tokens", 0,
		"max tokens to run, in windows of the model's context; the page shows the first window; 0: one window")
	set.IntVar(&o.layer, "layer", -1,
		"layer that the page shows first; -1: the one with the most attention to an earlier occurrence of a word")
	if err := command.Parse(set, args, help); err != nil {
		return nil, err
	}
	return o, command.UsageError(o.check(set))
}

// check returns an error if an option is out of its range or does not fit the others.
func (o *options) check(set *flag.FlagSet) (err error) {
	switch {
	case o.model == "":
		return errors.New("-model is missing: want a run folder, a checkpoint or a file of weights, such as " +
			"go run ./examples/train writes")
	case o.text != "" && o.file != "":
		return errors.New("-text and -file exclude each other")
	case o.tokens < 0 || o.tokens == 1:
		return fmt.Errorf("-tokens is %d, want 0 or at least 2", o.tokens)
	case o.layer < -1:
		return fmt.Errorf("-layer is %d, want -1 or more", o.layer)
	case o.out != "" && corpus.IsRun(o.out): // it has a loss.png of its own
		return fmt.Errorf("-out %s is a run's folder, whose files would be replaced: want another one, such as %s",
			o.out, filepath.Join(o.out, "inspect"))
	}
	set.Visit(func(f *flag.Flag) {
		if slices.Contains([]string{"text", "file", "out"}, f.Name) && f.Value.String() == "" {
			err = fmt.Errorf("-%s is empty", f.Name)
		}
	})
	return err
}

// maxTextBytes bounds the file of a text, which is in memory.
const maxTextBytes = 64 << 20

// read returns the text to run.
func (o *options) read() (string, error) {
	if o.file == "" {
		return cmp.Or(o.text, inspect.Sample()), nil
	}
	f, err := os.Open(o.file)
	if err != nil {
		return "", command.Flag("file", o.file, err)
	}
	defer f.Close()
	text, err := files.ReadAll(f, maxTextBytes)
	return string(text), command.Flag("file", o.file, err)
}

func run(args []string, out io.Writer) (err error) {
	o, err := parse(args, out)
	if err != nil {
		return err
	}
	defer command.Explain(&err, o.set, nil)
	text, err := o.read()
	if err != nil {
		return err
	}
	model, err := saved.Open(o.model, o.tokenizer, o.device, graph.F32.String(), out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	if n := model.Weights.Config.Layers; o.layer >= n {
		return command.UsageError(fmt.Errorf("-layer is %d, the model has 0 to %d", o.layer, n-1))
	}
	tokens, err := model.Tokenizer.Encode(text)
	if err != nil {
		return err
	}
	if o.tokens == 0 {
		o.tokens = model.Weights.Config.Context
	}
	about := inspect.Options{Title: "TinyLM of " + filepath.ToSlash(o.model), Vocabulary: model.Tokenizer, Backend: model.Backend}
	r, err := inspect.Inspect(model.Weights, tokens[:min(len(tokens), o.tokens)], about)
	if errors.Is(err, memory.ErrTooMuch) {
		err = fmt.Errorf("%w: reduce -tokens, to less than the context of the model", err)
	}
	if err != nil {
		return err
	}
	if o.layer >= 0 {
		r.Start = inspect.QueryRef{Layer: o.layer, Query: len(r.Tokens) - 1}
	}
	if err := r.Save(o.out); err != nil {
		return command.Flag("out", o.out, fault.In("inspect", "", err))
	}
	summary := fmt.Sprintf("%s\n%s\n", r.Summary(), filepath.Join(o.out, inspect.PageFile))
	_, err = io.WriteString(out, terminal.Wrap(summary, terminal.Width(out), 2))
	return err
}
