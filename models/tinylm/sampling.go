package tinylm

import (
	"fmt"
	"math"
	"slices"

	"github.com/gorgonia-nsa/nsa/internal/fault"
)

// Sampling says how the tokens of a sequence are chosen and when it ends. The zero value takes the most likely token and never ends.
//
// The logits change in this order: repetition penalty, temperature, top-k, top-p; then a token is drawn.
type Sampling struct {
	// RepetitionPenalty changes the logits of all tokens of prompt and output: it divides those above 0 and multiplies those below
	// (Keskar et al. 2019, arXiv 1909.05858). 0 and 1 change nothing.
	RepetitionPenalty float64
	Temperature       float64 // divides the logits; 0 takes the most likely token, the one with the lowest id of equal ones
	TopK              int     // draws from the k most likely tokens; 0: from all
	TopP              float64 // draws from the fewest most likely tokens whose probabilities sum to p or more; 0 and 1: from all
	Seed              uint64  // of the draws

	MaxTokens  int      // a sequence ends after so many; 0: no limit
	StopTokens []int32  // each ends a sequence; its text is left out
	Stop       []string // each ends a sequence; the text ends before it, wherever tokens begin and end
}

// Validate returns an error that names the value that is out of its range.
func (s Sampling) Validate() error { return fault.In("tinylm", "sampling", s.check()) }

// check is Validate without the name of this package in its error.
func (s Sampling) check() error {
	for _, n := range []struct {
		name, label string
		v, max      float64
	}{
		{"RepetitionPenalty", "repetition penalty", s.RepetitionPenalty, math.MaxFloat64},
		{"Temperature", "temperature", s.Temperature, math.MaxFloat64}, {"TopP", "top p", s.TopP, 1},
	} {
		if !(n.v >= 0 && n.v <= n.max) {
			return fault.Of(n.name, n.label, "is %v, want a number from 0%s", n.v, upTo(n.max))
		}
	}
	switch i := slices.Index(s.Stop, ""); {
	case s.TopK < 0:
		return fault.Of("TopK", "top k", "is %d, want at least 0", s.TopK)
	case s.MaxTokens < 0:
		return fault.Between("MaxTokens", "at most %d tokens, want at least 0", s.MaxTokens)
	case i >= 0:
		return fault.Of("Stop", "stop string", "%d is empty", i)
	}
	return nil
}

// upTo names the end of a range in an error.
func upTo(max float64) string {
	if max == math.MaxFloat64 {
		return ""
	}
	return fmt.Sprintf(" to %v", max)
}
