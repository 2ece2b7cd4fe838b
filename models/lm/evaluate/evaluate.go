// Package evaluate measures a language model: the perplexity of a text by position, a needle in a haystack, multiple
// choice by likelihood, and tokens per second. It is the program of examples/evaluate.
package evaluate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// Evaluator measures a model on a device. Only one goroutine may use it at a time.
type Evaluator struct {
	Weights   *tinylm.Weights // in the memory of Backend
	Tokenizer Tokenizer
	Backend   graph.Backend
	Precision graph.Precision
}

// Tokenizer turns text into tokens and back.
type Tokenizer interface {
	tinylm.Vocabulary
	Encode(text string) ([]int32, error)
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
	each, err := m.Losses()
	if err != nil {
		return nil, err
	}
	return each[:n-1], nil
}

// Perplexity is the cross entropy of a text in windows of Length tokens.
type Perplexity struct {
	Length      int     // tokens of a window
	Windows     int     // that were measured
	Loss        float64 // mean cross entropy of all tokens but the first of each window, in nats a token
	BitsPerByte float64 // of these tokens: the sum of their cross entropies in bits over the bytes of their text
	Speed       float64 // tokens per second
	Positions   []Position
}

// Position is the cross entropy of the tokens that follow From+1 to To tokens of their window.
type Position struct {
	From, To int
	Loss     float64 // mean, in nats a token
}

// firstPosition is the end of the first range of positions. Each further one ends at twice as much.
const firstPosition = 256

// Perplexity measures the text of tokens in windows of length tokens that follow each other, at most so many. When ctx
// ends, it returns its cause after the current window.
func (e *Evaluator) Perplexity(ctx context.Context, tokens []int32, length, windows int) (p Perplexity, err error) {
	defer fault.Name(&err, "evaluate", "perplexity")
	if length < 2 || windows < 1 || len(tokens) < length {
		return p, fmt.Errorf("%d windows of %d tokens of a text of %d, want at least 1, of at least 2 tokens", windows, length, len(tokens))
	}
	m, err := e.model(length)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	for from := 0; from < length-1; from = p.Positions[len(p.Positions)-1].To {
		p.Positions = append(p.Positions, Position{From: from, To: min(max(firstPosition, 2*from), length-1)})
	}
	var sum float64
	var bytes int
	var text []byte
	var took time.Duration
	p.Length = length
	for ; p.Windows < windows && len(tokens) >= length; p.Windows++ {
		if ctx.Err() != nil {
			return p, context.Cause(ctx)
		}
		window := tokens[:length]
		tokens = tokens[length:]
		began := time.Now()
		each, err := losses(m, window)
		if err != nil {
			return p, err
		}
		if p.Windows > 0 { // the first one records the graph
			took += time.Since(began)
		}
		at := 0
		for i, l := range each {
			for i >= p.Positions[at].To {
				at++
			}
			p.Positions[at].Loss += l
			sum += l
			text = e.Tokenizer.AppendToken(text[:0], window[i+1])
			bytes += len(text)
		}
	}
	for i := range p.Positions {
		r := &p.Positions[i]
		r.Loss /= float64((r.To - r.From) * p.Windows)
	}
	p.Loss = sum / float64((length-1)*p.Windows)
	p.BitsPerByte = sum / math.Ln2 / float64(max(1, bytes))
	if took > 0 {
		p.Speed = float64((p.Windows-1)*length) / took.Seconds()
	}
	return p, nil
}
