package evaluate

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// Speed is how fast a decoder is with sequences that run at once.
type Speed struct {
	Sequences int     `json:"sequences"`
	Prompt    int     `json:"prompt"`                    // tokens of the prompt of a sequence
	Prefill   float64 `json:"prefill_tokens_per_second"` // of the prompts, one after the other
	Decoded   int     `json:"decoded"`                   // tokens of all sequences behind their prompts, one of each at a time
	Decode    float64 `json:"decode_tokens_per_second"`  // of these
}

// maxSequences bounds the sequences of Speed.
const maxSequences = 1 << 10

// Speed prefills a prompt for each sequence and decodes so many tokens behind it, greedily, twice: the first time makes
// the graphs, the second one is measured. When ctx ends, Speed returns its cause.
func (e *Evaluator) Speed(ctx context.Context, prompt []int32, sequences, tokens int) (_ *Speed, err error) {
	defer fault.Name(&err, "evaluate", "speed")
	if err := e.check(ctx); err != nil {
		return nil, err
	}
	if len(prompt) < 1 || len(prompt) > MaxLength || tokens < 1 || tokens > MaxLength {
		return nil, fmt.Errorf("%d tokens behind %d, want 1 to %d of each", tokens, len(prompt), MaxLength)
	}
	if sequences < 1 || sequences > maxSequences {
		return nil, fmt.Errorf("%d sequences, want 1 to %d", sequences, maxSequences)
	}
	s, d, err := e.sampler(sequences, len(prompt)+tokens)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	warm := s.Stats()
	for range 2 {
		warm = s.Stats()
		for range sequences {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if _, err := s.Add(prompt, tinylm.Sampling{MaxTokens: tokens + 1}); err != nil { // the first one is of the prefill
				return nil, err
			}
		}
		for _, err := range s.Tokens() {
			if err != nil {
				return nil, err
			}
		}
	}
	all := s.Stats()
	decoded := all.Decoded - warm.Decoded
	return &Speed{
		Sequences: sequences,
		Prompt:    len(prompt),
		Prefill:   float64(all.Prefilled-warm.Prefilled) / max(all.Prefill-warm.Prefill, 1).Seconds(),
		Decoded:   decoded,
		Decode:    float64(decoded) / max(all.Decode-warm.Decode, 1).Seconds(),
	}, nil
}
