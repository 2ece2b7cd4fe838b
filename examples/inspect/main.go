// Inspect shows a trained TinyLM at work on a text: which blocks each query selects, the gates, how far each branch looks, the loss of
// each token, and the graph. It writes one HTML page, which needs no network, and pictures beside it.
//
//	go run ./examples/train -steps 3280 -out runs/tiny
//	go run ./examples/inspect -model runs/tiny
//	go run ./examples/inspect -model runs/tiny -file main.go -tokens 16384 -out look
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/models/tinylm/inspect"
)

func main() {
	err := run(os.Args[1:], os.Stdout)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// maxText is the largest text in bytes.
const maxText = 64 << 20

type options struct {
	model, tokenizer, text, file, out, device string
	tokens                                    int
}

func parse(args []string, help io.Writer) (*options, error) {
	o := &options{}
	set := flag.NewFlagSet("inspect", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.StringVar(&o.model, "model", "", "run folder, checkpoint or file of weights")
	set.StringVar(&o.tokenizer, "tokenizer", "", "tokenizer.json of the model; empty: that of its run")
	set.StringVar(&o.text, "text", "", "text to run")
	set.StringVar(&o.file, "file", "", "file of the text, in place of -text; without both it is a small Go function")
	set.StringVar(&o.out, "out", "inspect", "folder to write to, which is made")
	set.StringVar(&o.device, "device", "auto", "auto, cpu or cuda:N; auto: the first GPU, or the cpu where there is none")
	set.IntVar(&o.tokens, "tokens", 0, "most tokens to run, in windows of the model's context; the page shows the first window; 0: one window")
	switch err := set.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		set.SetOutput(help)
		set.PrintDefaults()
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("inspect: %w (-help lists all)", err)
	case set.NArg() > 0:
		return nil, fmt.Errorf("inspect: unexpected argument %q", set.Arg(0))
	case o.model == "":
		return nil, errors.New("inspect: -model is missing: want a run folder, a checkpoint or a file of weights, such as go run ./examples/train writes")
	case o.text != "" && o.file != "":
		return nil, errors.New("inspect: -text and -file exclude each other")
	case o.tokens < 0:
		return nil, fmt.Errorf("inspect: -tokens is %d, want 0 or more", o.tokens)
	}
	return o, nil
}

// read returns the text to run.
func (o *options) read() (string, error) {
	if o.file == "" {
		if o.text == "" {
			return inspect.Sample(), nil
		}
		return o.text, nil
	}
	f, err := os.Open(o.file)
	if err != nil {
		return "", fmt.Errorf("inspect: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxText))
	return string(text), err
}

func run(args []string, out io.Writer) (err error) {
	o, err := parse(args, out)
	if err != nil {
		return err
	}
	text, err := o.read()
	if err != nil {
		return err
	}
	m, err := inspect.Open(o.model, o.tokenizer)
	if err != nil {
		return err
	}
	tokens, err := m.Tokenizer.Encode(text)
	if err != nil {
		return err
	}
	if o.tokens == 0 {
		o.tokens = m.Weights.Config.Context
	}
	b, err := cuda.Select(o.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	r, err := inspect.Inspect(m.Weights, tokens[:min(len(tokens), o.tokens)], inspect.Options{Title: "TinyLM of " + filepath.ToSlash(o.model), Decode: m.Tokenizer.Decode, Backend: b})
	if err != nil {
		return err
	}
	if err := r.Save(o.out); err != nil {
		return err
	}
	fmt.Fprintf(out, "loss %.4f nats a token (%.3f bits) over %d windows of %d tokens\n", r.MeanLoss(), r.MeanLoss()/math.Ln2, r.Windows, len(r.Tokens))
	if w := r.Follows(); w.Queries > 0 {
		part := func(x float64) float64 { return 100 * x / float64(w.Queries) }
		fmt.Fprintf(out, "queries inside a word that stood before: %.1f %% choose a block with it, %.1f %% by a random choice;\n"+
			"it has %.1f %% of the attention to chosen blocks, %.1f %% were it even\n", part(float64(w.Found)), part(w.Chance), part(w.Looked), part(w.Even))
	}
	fmt.Fprintln(out, filepath.Join(o.out, inspect.PageFile))
	return nil
}
