package evaluate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gorgonia-nsa/nsa/internal/fault"
)

// Perplexity is the cross entropy of a text that is cut into windows.
type Perplexity struct {
	Length          int        `json:"length"`            // tokens of a window, those before the text included
	Windows         int        `json:"windows"`           // that were measured
	All             Position   `json:"all"`               // of all tokens but the first of each window
	Positions       []Position `json:"positions"`         // one behind the other
	TokensPerSecond float64    `json:"tokens_per_second"` // without the first of several windows
}

// Position is the cross entropy of tokens with From to To-1 tokens of their window before them.
type Position struct {
	From        int     `json:"from"`
	To          int     `json:"to"`
	Tokens      int     `json:"tokens"`        // of all windows
	Bytes       int     `json:"bytes"`         // of their text; special tokens have none
	Loss        float64 `json:"loss"`          // mean, in nats a token
	Perplexity  float64 `json:"perplexity"`    // exp(Loss)
	BitsPerByte float64 `json:"bits_per_byte"` // sum of the cross entropies in bits over Bytes; 0 without bytes
}

// finish sets the means of a Position whose Loss is a sum.
func (p *Position) finish() {
	if p.Bytes > 0 {
		p.BitsPerByte = p.Loss / math.Ln2 / float64(p.Bytes)
	}
	p.Loss /= float64(max(1, p.Tokens))
	p.Perplexity = math.Exp(p.Loss)
}

// firstPosition is the end of the first range of positions. Each further one ends at twice as much.
const firstPosition = 64

// positions returns the ranges of the positions of a window whose first tokens are not predicted.
func positions(first, length int) (list []Position) {
	for from, to := first, firstPosition; from < length; to *= 2 {
		if to > from {
			list = append(list, Position{From: from, To: min(to, length)})
			from = to
		}
	}
	return list
}

// Perplexity measures the text of tokens in windows of length tokens that follow each other, at most so many. What is
// left behind the last whole window is not measured. When ctx ends, Perplexity returns its cause after the current
// window.
func (e *Evaluator) Perplexity(ctx context.Context, text []int32, length, windows int) (_ *Perplexity, err error) {
	defer fault.Name(&err, "evaluate", "perplexity")
	if err := e.check(ctx); err != nil {
		return nil, err
	}
	prefix := e.Tokenizer.Prefix()
	before := len(prefix)
	step := length - before // tokens of the text in a window
	switch {
	case length < 2 || length > MaxLength || step < 1:
		return nil, fmt.Errorf("windows of %d tokens, want %d to %d", length, max(2, before+1), MaxLength)
	case windows < 1:
		return nil, fmt.Errorf("%d windows, want at least 1", windows)
	case len(text) < step:
		return nil, fmt.Errorf("a text of %d tokens, want at least %d, a window", len(text), step)
	}
	windows = min(windows, len(text)/step)
	m, err := e.model(length)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	first := max(1, before)
	p := &Perplexity{Length: length, All: Position{From: first, To: length}, Positions: positions(first, length)}
	var took time.Duration
	for ; p.Windows < windows; p.Windows++ {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		window := slices.Concat(prefix, text[p.Windows*step:][:step])
		began := time.Now()
		list, err := losses(m, window)
		if err != nil {
			return nil, fmt.Errorf("window %d: %w", p.Windows+1, err)
		}
		if p.Windows == 1 {
			took = 0 // the first one records the graph
		}
		took += time.Since(began)
		loss := p.All.Loss
		e.add(p, window, list)
		e.printf("window %d of %d: %.4f nats/token\n", p.Windows+1, windows, (p.All.Loss-loss)/float64(length-first))
	}
	p.All.finish()
	for i := range p.Positions {
		p.Positions[i].finish()
	}
	p.TokensPerSecond = float64(max(1, p.Windows-1)*length) / max(took, 1).Seconds()
	return p, nil
}

// add adds the losses of the tokens of a window, those of losses, to the sums of p.
func (e *Evaluator) add(p *Perplexity, window []int32, list []float64) {
	var text []byte
	for i := range p.Positions {
		for at := p.Positions[i].From; at < p.Positions[i].To; at++ {
			text = text[:0]
			if id := window[at]; !e.Tokenizer.Special(id) {
				text = e.Tokenizer.AppendToken(text, id)
			}
			for _, sum := range []*Position{&p.All, &p.Positions[i]} {
				sum.Tokens++
				sum.Bytes += len(text)
				sum.Loss += list[at-1]
			}
		}
	}
}
