package evaluate

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorgonia-nsa/nsa/internal/fault"
)

// Speed is how fast a decoder is with one sequence.
type Speed struct {
	Prompt  int     `json:"prompt"`                    // tokens of the prompt
	Prefill float64 `json:"prefill_tokens_per_second"` // of the prompt
	Decoded int     `json:"decoded"`                   // tokens behind it, one at a time
	Decode  float64 `json:"decode_tokens_per_second"`  // of these
}

// Speed prefills a prompt and decodes so many tokens behind it, greedily, twice: the first time makes the graphs, the
// second one is measured. When ctx ends, Speed returns its cause.
func (e *Evaluator) Speed(ctx context.Context, prompt []int32, tokens int) (_ *Speed, err error) {
	defer fault.Name(&err, "evaluate", "speed")
	if err := e.check(ctx); err != nil {
		return nil, err
	}
	if len(prompt) < 1 || len(prompt) > MaxLength || tokens < 1 || tokens > MaxLength {
		return nil, fmt.Errorf("%d tokens behind %d, want 1 to %d of each", tokens, len(prompt), MaxLength)
	}
	s, d, err := e.sampler(len(prompt) + tokens)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	warm := s.Stats()
	for range 2 {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		warm = s.Stats()
		if _, err := complete(s, prompt, tokens+1); err != nil { // the first one is of the prefill
			return nil, err
		}
	}
	all := s.Stats()
	decoded := all.Decoded - warm.Decoded
	return &Speed{
		Prompt:  len(prompt),
		Prefill: float64(all.Prefilled-warm.Prefilled) / max(all.Prefill-warm.Prefill, 1).Seconds(),
		Decoded: decoded,
		Decode:  float64(decoded) / max(all.Decode-warm.Decode, 1).Seconds(),
	}, nil
}
