// Package evaluate measures a language model: the perplexity of a text by position, a needle in a haystack, multiple
// choice by likelihood, and tokens per second. It is the program of examples/evaluate.
//
// A text, a haystack and a question begin with Tokenizer.Prefix, such as the token BOS of Llama.
package evaluate

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"strconv"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/origin"
	"github.com/gorgonia-nsa/nsa/internal/saved"
	"github.com/gorgonia-nsa/nsa/internal/terminal"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/tokenizer"
)

// MaxLength bounds the tokens of a window, of a haystack, and of a question with a choice.
const MaxLength = 1 << 17

// Evaluator measures a model on a device. Only one goroutine may use it at a time.
type Evaluator struct {
	Weights   *tinylm.Weights // in the memory of Backend
	Tokenizer *tokenizer.Tokenizer
	Backend   graph.Backend
	Precision graph.Precision
	Status    io.Writer // gets lines about the progress; nil: none

	closers command.Closers // of Open
}

// Open opens a model, of train.FindModel, with the tokenizer at a path or, if that is empty, its own, and moves it to a
// device, auto, cpu or cuda:N. Errors name the flags -model, -device and -precision.
func Open(model, tokenizer, device, precision string, status io.Writer) (_ *Evaluator, about Model, err error) {
	defer fault.Name(&err, "evaluate", "")
	if status == nil {
		status = io.Discard
	}
	m, err := saved.Open(model, tokenizer, device, precision, status)
	if err != nil {
		return nil, about, err
	}
	if err := m.Weights.MoveTo(m.Backend); err != nil {
		return nil, about, errors.Join(err, m.Close())
	}
	terminal.Printf(status, "%v\n", m)
	c := m.Weights.Config.WithDefaults()
	return &Evaluator{m.Weights, m.Tokenizer, m.Backend, m.Precision, status, m.Closers}, Model{Path: model,
		Weights: m.WeightsFile, Attention: string(c.Attention), Parameters: c.Parameters(),
		Layers: c.Layers, Vocab: c.Vocab, Context: c.Context}, nil
}

// Close frees what Open has opened.
func (e *Evaluator) Close() error {
	if e == nil {
		return nil
	}
	return e.closers.Close()
}

// Origin returns what describes the origin of the numbers of a program, by name. set is its command line.
func (e *Evaluator) Origin(program string, set *flag.FlagSet) map[string]string {
	device := origin.Processor()
	if d := e.Backend.Device(); !d.Host {
		device = d.Name
	}
	all := map[string]string{}
	for _, c := range origin.Columns(program, set, origin.Column{Name: "device", Value: device},
		origin.Column{Name: "cores", Value: strconv.Itoa(runtime.GOMAXPROCS(0))},
		origin.Column{Name: "precision", Value: e.Precision.String()}) {
		all[c.Name] = c.Value
	}
	return all
}

// check returns an error if a field is missing.
func (e *Evaluator) check(ctx context.Context) error {
	if e == nil || e.Weights == nil || e.Tokenizer == nil || value.IsNil(e.Backend) || ctx == nil {
		return errors.New("no weights, tokenizer, backend or context")
	}
	return nil
}

func (e *Evaluator) printf(format string, args ...any) {
	if e.Status != nil {
		terminal.Printf(e.Status, format, args...)
	}
}

// model returns a model of one sequence of so many tokens that keeps its losses.
func (e *Evaluator) model(tokens int) (*tinylm.Model, error) {
	return tinylm.NewModel(e.Weights, 1, tokens, tinylm.WithLosses(), tinylm.WithoutLogits(),
		tinylm.WithMachine(graph.WithBackend(e.Backend), graph.WithPrecision(e.Precision)))
}

// losses runs m over tokens, which may be fewer than it takes, and returns the cross entropy in nats of each token but
// the first.
func losses(m *tinylm.Model, tokens []int32) ([]float64, error) {
	n := len(tokens)
	clear(m.Tokens()[copy(m.Tokens(), tokens):])
	targets := m.Targets()
	for i := range targets {
		if targets[i] = -1; i+1 < n {
			targets[i] = tokens[i+1]
		}
	}
	if err := m.Run(); err != nil {
		return nil, err
	}
	list, err := m.Losses()
	if err != nil {
		return nil, err
	}
	list = list[:n-1]
	for i, l := range list {
		if value.NotFinite(l) {
			return nil, fmt.Errorf("the cross entropy of token %d behind %d others is %v", tokens[i+1], i+1, l)
		}
	}
	return list, nil
}

// sampler returns a sampler of so many sequences of at most so many tokens. Close ends its decoder.
func (e *Evaluator) sampler(sequences, tokens int) (s *tinylm.Sampler, d *tinylm.Decoder, err error) {
	var opts []tinylm.DecoderOption
	if !e.Backend.Device().Host || e.Precision != graph.F32 {
		opts = append(opts, tinylm.DecodeOn(e.Backend, e.Precision))
	} // else the decoder chooses the number of workers
	if d, err = tinylm.NewDecoder(e.Weights, sequences, tokens, opts...); err != nil {
		return nil, nil, err
	}
	s, err = tinylm.NewSampler(d, e.Tokenizer)
	return s, d, err
}
