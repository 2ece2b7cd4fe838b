// Package generate generates texts with a TinyLM: it is the program of examples/generate.
//
// Several texts are generated at once, but written in the order of their prompts. The first text that has not ended is
// written while it is generated. A text depends on its prompt and its seed, not on other texts. Without a prompt a
// document begins: the model gets the separator of documents. Any other prompt is used unchanged. A text ends with its
// document, at a stop string or after -tokens.
package generate

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/internal/terminal"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/models/lm/chat"
)

// Main runs the program with the arguments of a command line and returns its exit status: 1 after an error, 2 if the
// arguments are wrong, 128 + n if signal n has ended it.
func Main(args []string, in io.Reader, out, status io.Writer) int {
	o, err := Parse(args, out)
	var own []os.Signal // that end a text, not the program
	if err == nil && o.Interactive {
		var end func()
		o.interrupts, end = command.Interrupts()
		defer end()
		own = append(own, os.Interrupt)
	}
	ctx, stop := command.OnSignals(context.Background(), status, "the text ends here", own...)
	defer stop()
	if err == nil {
		err = Run(ctx, o, in, terminal.Writer(out), status)
	}
	return command.ExitStatus(err, status)
}

// Run writes the texts of o to out. Without prompts, and without File, the prompt is all of in, unless that is nil or a
// terminal: without a line end at its end, so that echo can write it. Without any text a new document begins. Run
// writes to status a line about the model, one about each prompt that is cut, and at the end one with the tokens per
// second of prefill and decode. When ctx ends, Run returns its cause.
func Run(ctx context.Context, o *Options, in io.Reader, out, status io.Writer) (err error) {
	if ctx == nil || o == nil {
		return errors.New("generate: no context, or no options")
	}
	defer o.explain(&err)
	if err := o.Validate(); err != nil {
		return err
	}
	switch {
	case value.IsNil(out) || value.IsNil(status):
		return errors.New("no writer of the texts or of the status")
	case (o.Interactive || o.File == "-" || slices.Contains(o.Prompts, "-")) && value.IsNil(in):
		return errors.New("no input, which -interactive, -prompt - and -file - read")
	}
	prompts, err := o.prompts(ctx, in, status)
	if err != nil {
		return err
	}
	texts, most := max(1, len(prompts))*o.Samples, o.Batch
	if texts > maxTexts {
		return fmt.Errorf("-n %d: %d texts, want at most %d", o.Samples, texts, maxTexts)
	}
	if most == 0 {
		most = defaultBatch
	}
	m, err := openModel(o, min(texts, most), status)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	w := &writer{Options: o, model: m, out: out, status: status}
	if o.Interactive {
		err = w.converse(ctx, in)
	} else {
		var list []*text
		if list, err = w.texts(prompts); err == nil {
			err = w.write(ctx, list)
		}
	}
	s := m.sampler.Stats()
	terminal.Printf(status, "prefill: %d tokens, %.0f tokens/s; decode: %d tokens, %.0f tokens/s\n",
		s.Prefilled, rate(s.Prefilled, s.Prefill), s.Decoded, rate(s.Decoded, s.Decode))
	return err
}

// rate returns tokens per second, 0 if there are no tokens.
func rate(tokens int, took time.Duration) float64 { return float64(tokens) / max(took, 1).Seconds() }

// maxTexts bounds the texts of a run, because their prompts are in memory.
const maxTexts = 1 << 20

// maxPromptBytes bounds a prompt file and a line of interactive input.
const maxPromptBytes = 64 << 20

// prompts returns the prompts of flags, file and input, an empty one if there are none.
func (o *Options) prompts(ctx context.Context, in io.Reader, status io.Writer) ([]string, error) {
	list := slices.Clone(o.Prompts)
	if len(list) == 0 && o.File == "" && !o.Interactive {
		if file, ok := in.(*os.File); value.IsNil(in) || ok && term.IsTerminal(int(file.Fd())) {
			return []string{""}, nil
		}
		list = []string{"-"}
	}
	for i, p := range list {
		if p != "-" {
			continue
		}
		text, err := read(ctx, p, in, status)
		if err != nil {
			return nil, command.Flag("prompt", p, err)
		}
		list[i] = strings.TrimSuffix(strings.TrimSuffix(text, "\n"), "\r")
	}
	if o.File != "" {
		text, err := read(ctx, o.File, in, status)
		if err != nil {
			return nil, command.Flag("file", o.File, err)
		}
		list = append(list, text)
	}
	return list, nil
}

// read returns the text of a file, or of in for "-". If that takes long, it says so: a pipe may stay open. When ctx
// ends it returns the cause; a read that waits for input goes on.
func read(ctx context.Context, path string, in io.Reader, status io.Writer) (string, error) {
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		if path != "-" {
			f, err := os.Open(path) // waits for a writer if it is a pipe
			if err != nil {
				done <- result{err: err}
				return
			}
			defer f.Close()
			in = f
		}
		text, err := files.ReadAll(in, maxPromptBytes)
		done <- result{text, err}
	}()
	late := time.After(2 * time.Second)
	for {
		select {
		case r := <-done:
			return string(r.text), r.err
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-late:
			name := path
			if path == "-" {
				name = "the standard input"
			}
			terminal.Printf(status, "waiting for the end of %s\n", name)
		}
	}
}

// writer writes texts, those of several prompts in their order.
type writer struct {
	*Options
	*model
	out, status io.Writer
	said        []chat.Message // of -interactive -chat so far
	inLine      bool           // what is written does not end with a line break
}

// converse answers each line of in. It reports a line that is no prompt, such as one that is not UTF-8 for a tokenizer,
// and goes on.
func (w *writer) converse(ctx context.Context, in io.Reader) error {
	lines, failed := make(chan string), make(chan error, 1)
	go func() { // a read does not end when ctx ends
		defer close(lines)
		s := bufio.NewScanner(in)
		s.Buffer(nil, maxPromptBytes)
		for ctx.Err() == nil && s.Scan() {
			select {
			case lines <- s.Text():
			case <-ctx.Done():
			}
		}
		err := s.Err()
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("a line of more than %s", memory.Size(maxPromptBytes))
		}
		failed <- err
	}()
	for {
		fmt.Fprint(w.status, "> ")
		select {
		case line, ok := <-lines:
			if !ok {
				fmt.Fprintln(w.status)
				return cmp.Or(context.Cause(ctx), <-failed)
			}
			texts, err := w.texts([]string{line})
			if err != nil {
				terminal.Printf(w.status, "%v\n", err)
				continue
			}
			said := append(w.conversation(), chat.Message{Role: "user", Content: line})
			if err := w.answer(ctx, texts); err != nil {
				return err
			}
			if w.chat != nil {
				w.said = append(said, chat.Message{Role: "assistant", Content: string(texts[0].answer)})
			}
		case <-w.interrupts:
			fmt.Fprintln(w.status)
			return command.Stop{Signal: syscall.SIGINT}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// errInterrupted ends a text.
var errInterrupted = errors.New("the text is ended")

// answer writes texts until they have ended, or until an interrupt comes.
func (w *writer) answer(ctx context.Context, texts []*text) error {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-w.interrupts:
			cancel(errInterrupted)
		case <-ctx.Done():
		}
	}()
	err := w.write(ctx, texts)
	cancel(nil)
	<-done
	if errors.Is(err, errInterrupted) {
		return nil
	}
	return err
}
