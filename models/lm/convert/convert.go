// Package convert makes a language model with Native Sparse Attention of a dense one. It is the program of
// examples/convert.
//
// A conversion is a folder, of measurements and of runs of package train, its phases. What has ended is in
// convert.json: a conversion that was stopped continues with the first that has not.
package convert

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/internal/terminal"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/models/lm"
	"github.com/gorgonia-nsa/nsa/models/lm/evaluate"
	"github.com/gorgonia-nsa/nsa/models/lm/pretrained"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/train"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Main runs the program with the arguments of a command line and returns its exit status: 1 after an error, 2 if the
// arguments are wrong, 128 + n if signal n has ended it.
func Main(args []string, out, status io.Writer) int {
	ctx, stop := command.OnSignals(context.Background(), status, train.Stopping)
	defer stop()
	o, err := Parse(args, out)
	if err == nil {
		err = Run(ctx, o, out, status)
	}
	return command.ExitStatus(err, status)
}

// Run converts a model, or continues a conversion of the same options. It writes its progress to status, and tables of
// the perplexities to out. When ctx ends, a run of train writes a checkpoint, and Run returns the cause of ctx.
func Run(ctx context.Context, o *Options, out, status io.Writer) (err error) {
	if ctx == nil || o == nil {
		return errors.New("convert: no context, or no options")
	}
	defer o.explain(&err)
	if err := o.Validate(); err != nil {
		return err
	}
	if value.IsNil(out) || value.IsNil(status) {
		return errors.New("no writer of the tables or of the progress")
	}
	c := &conversion{Options: o, status: status}
	defer func() { err = errors.Join(err, c.closers.Close()) }()
	if err = c.open(ctx); err == nil {
		err = c.convert(ctx)
	}
	stopped := (*train.Interrupted)(nil)
	switch cause := context.Cause(ctx); {
	case err == nil:
		_, err = io.WriteString(out, terminal.Wrap(c.result.table(), terminal.Width(out), 2))
	case errors.Is(err, memory.ErrTooMuch):
		err = fmt.Errorf("%w: reduce -batch-tokens, -context or -lengths", err)
	case cause == nil:
	case errors.Is(err, cause), errors.Is(err, ctx.Err()), errors.As(err, &stopped) && stopped.Err == nil:
		terminal.Printf(status, "stopped: the same command continues\n")
		err = cause
	}
	return err
}

// Phase is a run of package train in a folder of its name.
type Phase struct {
	Name    string  `json:"name"`
	Align   bool    `json:"align"`   // else it trains by the loss of the language model
	Context int     `json:"context"` // tokens of a window
	Batch   int     `json:"batch"`   // windows of a step
	Steps   int     `json:"steps"`
	Seconds float64 `json:"seconds"`
}

// The length of the windows of the first phase, and how many times as long they are in the next one.
const (
	firstContext = 2048
	growth       = 4
)

// phases returns the phases of a model that was trained with so many tokens. The alignment ends with this length, or
// with -context: of longer texts the dense layers give no good examples. The others go on from there to -context.
func (o *Options) phases(trained int) (list []Phase) {
	add := func(kind string, steps, from, to int) {
		for n := min(from, to); steps > 0; n = min(n*growth, to) {
			list = append(list, Phase{Name: fmt.Sprintf("%s-%d", kind, n), Align: kind == "align", Context: n,
				Batch: o.BatchTokens / n, Steps: steps})
			if n == to {
				break
			}
		}
	}
	known := min(o.Context, trained)
	add("align", o.AlignSteps, firstContext, known)
	add("train", o.Steps, known, o.Context)
	return list
}

// The stages of a model at which it is measured. The dense model with -rope-scaling has one of its own.
const (
	dense   = "dense"
	aligned = "aligned"
	trained = "trained"
)

// convert does what has not been done.
func (c *conversion) convert(ctx context.Context) error {
	model := c.Model
	if err := c.measure(ctx, dense, model); err != nil {
		return err
	}
	if c.scaling != (ops.RoPEScaling{}) {
		if err := c.write(scaledFolder, model, func(w *tinylm.Weights) (*tinylm.Weights, error) {
			w.Config.RoPEScaling, w.Config.Context = c.scaling, max(w.Config.Context, c.Context)
			return w, nil
		}); err != nil {
			return err
		}
		model = c.file(scaledFolder)
		if err := c.measure(ctx, dense+", "+c.RoPEScaling, model); err != nil {
			return err
		}
	}
	phases := c.phases(c.result.Model.Context)
	for i, p := range phases {
		if i >= len(c.result.Phases) {
			if err := c.train(ctx, p, model); err != nil {
				return fault.In("convert", p.Name, err)
			}
		}
		model = c.file(p.Name)
		stage := trained
		if p.Align {
			stage = aligned
		}
		if i == len(phases)-1 || phases[i+1].Align != p.Align {
			if err := c.measure(ctx, stage, model); err != nil {
				return err
			}
		}
	}
	if err := c.draw(); err != nil {
		return err
	}
	return c.write(modelFolder, model, func(w *tinylm.Weights) (*tinylm.Weights, error) {
		if w.Config.LoRA == 0 {
			return w, nil
		}
		return w.Merged()
	})
}

// measure measures the model at path with those of -lengths that the results do not have.
func (c *conversion) measure(ctx context.Context, stage, path string) (err error) {
	var e *evaluate.Evaluator
	for _, n := range c.Lengths {
		if c.result.has(stage, n) {
			continue
		}
		if e == nil {
			if e, _, err = evaluate.Open(path, c.tokenizer, c.Device, c.Precision, c.status); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, e.Close()) }()
		}
		p, err := e.Perplexity(ctx, c.text, n, c.Windows)
		if err != nil {
			return err
		}
		terminal.Printf(c.status, "%s: perplexity %.4g in windows of %d tokens\n", stage, p.All.Perplexity, n)
		c.result.Measured = append(c.result.Measured, Measurement{stage, p})
		if err := c.save(); err != nil {
			return err
		}
	}
	return nil
}

// train runs a phase that begins with the model at path, or resumes it.
func (c *conversion) train(ctx context.Context, p Phase, path string) error {
	folder := c.file(p.Name)
	args := []string{"-resume", folder, "-device", c.Device}
	if !files.Exists(filepath.Join(folder, "config.yaml")) && !files.Exists(filepath.Join(folder, "checkpoints")) {
		if err := os.RemoveAll(folder); err != nil { // what a kill has left of a run that had not begun
			return err
		}
		args = c.arguments(p, path)
	}
	terminal.Printf(c.status, "\n%s: %d steps of %d windows of %d tokens\n", p.Name, p.Steps, p.Batch, p.Context)
	o, err := train.Parse(args, nil)
	if err != nil {
		return err
	}
	r, err := train.Run(ctx, o, c.status)
	if err != nil {
		return err
	}
	p.Seconds = r.Elapsed.Seconds()
	c.result.Phases = append(c.result.Phases, p)
	return c.save()
}

// arguments returns the flags of a phase that begins with the model at path.
func (c *conversion) arguments(p Phase, path string) []string {
	args := []string{"-packed", "-optimizer=adamw", "-final-eval=0", "-sample=0", "-keep=1"}
	add := func(pairs ...any) {
		for i := 0; i < len(pairs); i += 2 {
			args = append(args, fmt.Sprintf("-%v=%v", pairs[i], pairs[i+1]))
		}
	}
	add("init", path, "out", c.file(p.Name), "tokenizer", c.tokenizer, "data", c.Data, "eval-data", c.EvalData,
		"ext", c.Ext, "context", p.Context, "batch", p.Batch, "steps", p.Steps, "seed", c.Seed, "device", c.Device,
		"precision", c.Precision, "eval-tokens", c.BatchTokens)
	if p.Align {
		add("align", true, "lr", c.AlignLR)
	} else {
		add("lora", c.LoRA, "lr", c.LR)
	}
	if len(c.result.Phases) == 0 { // the later ones begin with a sparse model
		add("attention", c.Attention, "block", c.BlockLen, "stride", c.Stride, "select-block", c.SelectBlock, "top-n", c.TopN,
			"window", c.Window, "gate-hidden", c.GateHidden)
	}
	return args
}

// write makes a folder of what change makes of the weights of the model at path, unless it is there.
func (c *conversion) write(name, path string, change func(*tinylm.Weights) (*tinylm.Weights, error)) (err error) {
	folder, part := c.file(name), c.file("."+name)
	if files.Exists(folder) {
		return nil
	}
	if err := os.RemoveAll(part); err != nil { // of a conversion that was killed here
		return err
	}
	found, err := train.FindModel(path)
	if err != nil {
		return err
	}
	w, _, err := found.Open(c.tokenizer)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Free()) }()
	changed, err := change(w)
	if err == nil {
		err = lm.Save(changed, part, pretrained.Layout{})
	}
	if err == nil {
		err = lm.CopyTokenizer(c.tokenizer, part)
	}
	if err == nil {
		err = os.Rename(part, folder)
	}
	return err
}
