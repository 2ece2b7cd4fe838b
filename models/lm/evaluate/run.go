package evaluate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/internal/terminal"
	"github.com/gorgonia-nsa/nsa/internal/value"
)

// Main runs the program with the arguments of a command line and returns its exit status: 1 after an error, 2 if the
// arguments are wrong, 128 + n if signal n has ended it.
func Main(args []string, out, status io.Writer) int {
	ctx, stop := command.OnSignals(context.Background(), status, "what has been measured is kept")
	defer stop()
	o, err := Parse(args, out)
	if err == nil {
		err = Run(ctx, o, out, status)
	}
	return command.ExitStatus(err, status)
}

// Run measures what o asks for. After each measurement it writes its table to out, and all results so far into the
// folder of o; it writes its progress to status. When ctx ends, Run returns its cause.
func Run(ctx context.Context, o *Options, out, status io.Writer) (err error) {
	if ctx == nil || o == nil {
		return errors.New("evaluate: no context, or no options")
	}
	defer o.explain(&err)
	if err := o.Validate(); err != nil {
		return err
	}
	if value.IsNil(out) || value.IsNil(status) {
		return errors.New("no writer of the tables or of the progress")
	}
	questions, err := o.questions()
	if err != nil {
		return err
	}
	r := &run{Options: o, out: out}
	defer func() { err = errors.Join(err, r.closers.Close()) }()
	if err := r.open(status); err != nil {
		return err
	}
	if err := r.readText(ctx); err != nil {
		return err
	}
	if o.Out != "" {
		if err := files.MakeFolder(o.Out); err != nil {
			return command.Flag("out", o.Out, err)
		}
	}
	err = r.measure(ctx, questions)
	if errors.Is(err, memory.ErrTooMuch) {
		err = fmt.Errorf("%w: reduce -length or -needles, or shorten the questions", err)
	}
	return err
}

// questions reads the questions of -choices.
func (o *Options) questions() ([]Question, error) {
	if o.Choices == "" {
		return nil, nil
	}
	f, err := files.Open(o.Choices)
	if err != nil {
		return nil, command.Flag("choices", o.Choices, err)
	}
	defer f.Close()
	list, err := ReadQuestions(f)
	return list, command.Flag("choices", o.Choices, err)
}

// run is a call of Run.
type run struct {
	*Options
	evaluator *Evaluator
	out       io.Writer
	length    int // tokens of a window
	text      []int32
	report    Report
	closers   command.Closers
}

// open opens the model and the device.
func (r *run) open(status io.Writer) error {
	e, about, err := Open(r.Model, r.Tokenizer, r.Device, r.Precision, status)
	if err != nil {
		return err
	}
	r.closers.Add(e.Close)
	r.evaluator = e
	r.report = Report{Origin: e.Origin(program, r.flagSet()), Model: about}
	return nil
}

// haystacks is the length of the text of haystacks, in the longest of them, if a folder has as much.
const haystacks = 4

// readText reads the text of -data and sets the length of its windows.
func (r *run) readText(ctx context.Context) error {
	if r.Data == "" {
		return nil
	}
	longest := 0
	if len(r.Needles) > 0 {
		longest = slices.Max(r.Needles)
	}
	if r.length = r.Length; r.length == 0 {
		r.length = min(r.evaluator.Weights.Config.Context, MaxLength)
	}
	want := max(r.length, min(r.Windows, maxTextBytes)*r.length, haystacks*longest)
	text, err := readText(ctx, r.Data, r.Ext, r.evaluator.Tokenizer, want)
	if err != nil {
		return command.Flag("data", r.Data, err)
	}
	most := text.Tokens + len(r.evaluator.Tokenizer.Prefix())
	switch {
	case text.Tokens < longest:
		return command.Flag("data", r.Data, fmt.Errorf("%d tokens, -needles has %d", text.Tokens, longest))
	case r.Length > most:
		return command.Flag("data", r.Data, fmt.Errorf("%d tokens, a window of -length has %d", most, r.Length))
	}
	r.length = min(r.length, most)
	r.report.Data, r.text = text, text.ids
	return nil
}

// measure measures what the options ask for.
func (r *run) measure(ctx context.Context, questions []Question) (err error) {
	e, p := r.evaluator, &r.report
	if r.Data != "" && r.Windows > 0 {
		if p.Perplexity, err = e.Perplexity(ctx, r.text, r.length, r.Windows); err != nil {
			return err
		}
		if err := r.save(p.Perplexity.table()); err != nil {
			return err
		}
	}
	if r.Data != "" && r.Decode > 0 {
		prompt := append(e.Tokenizer.Prefix(), r.text...)
		if p.Speed, err = e.Speed(ctx, prompt[:min(len(prompt), r.length)], r.Sequences, r.Decode); err != nil {
			return err
		}
		if err := r.save(p.Speed.table()); err != nil {
			return err
		}
	}
	if len(r.Needles) > 0 {
		if p.Needles, err = e.Needles(ctx, r.text, r.Needles, Depths(r.Depths), r.Times, r.Seed); err != nil {
			return err
		}
		if err := r.save(needleTable(p.Needles)); err != nil {
			return err
		}
	}
	if len(questions) > 0 {
		if p.Choices, err = e.Choose(ctx, questions); err != nil {
			return err
		}
		return r.save(p.Choices.table())
	}
	return nil
}

// save writes a table and the results so far.
func (r *run) save(table string) error {
	if r.Out != "" {
		if err := r.report.Save(r.Out); err != nil {
			return command.Flag("out", r.Out, err)
		}
	}
	_, err := io.WriteString(r.out, terminal.Wrap(table, terminal.Width(r.out), 2))
	return err
}
