package evaluate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// Needle says how often a model finds a number in a long text.
type Needle struct {
	Length int     `json:"length"` // tokens of the prompt: text, needle and question
	Depth  float64 `json:"depth"`  // where the needle stands: 0 at the beginning of the text, 1 at its end
	Asked  int     `json:"asked"`
	Found  int     `json:"found"` // the first number of the answer is that of the needle
}

// The needle and the question, with a name and, in the needle, a number.
const (
	needleText   = "\nThe special magic number for %s is: %d.\n"
	questionText = "\nQuestion: What is the special magic number for %s?\nAnswer: The special magic number for %s is:"
	answerTokens = 24
)

// needleNames returns what numbers are asked for.
func needleNames() []string {
	return []string{"Lisbon", "Nairobi", "Toronto", "Kyoto", "Oslo", "Lima", "Athens", "Dublin"}
}

// Depths returns n depths from 0 to 1 at equal distances, 0.5 if n is 1.
func Depths(n int) []float64 {
	if n == 1 {
		return []float64{0.5}
	}
	list := make([]float64, max(0, n))
	for i := range list {
		list[i] = float64(i) / float64(n-1)
	}
	return list
}

// Needles hides a number of seven digits in a part of the text, for each length and depth so many times, and asks for
// it (after G. Kamradt's needle in a haystack, 2023). The model answers by greedy decoding. The text needs as many
// tokens as the longest prompt. When ctx ends, Needles returns its cause.
func (e *Evaluator) Needles(ctx context.Context, text []int32, lengths []int, depths []float64, times int,
	seed uint64,
) (list []Needle, err error) {
	defer fault.Name(&err, "evaluate", "needle")
	if err := e.check(ctx); err != nil {
		return nil, err
	}
	if len(lengths) == 0 || len(depths) == 0 || times < 1 {
		return nil, fmt.Errorf("%d lengths, %d depths, %d times: want at least 1 of each", len(lengths), len(depths),
			times)
	}
	longest := slices.Max(lengths)
	switch {
	case longest > MaxLength:
		return nil, fmt.Errorf("length %d, want at most %d", longest, MaxLength)
	case len(text) < longest:
		return nil, fmt.Errorf("a text of %d tokens for a length of %d, want at least as many", len(text), longest)
	}
	for _, d := range depths {
		if !(d >= 0 && d <= 1) {
			return nil, fmt.Errorf("depth %v, want 0 to 1", d)
		}
	}
	for _, n := range lengths { // an error now, not after hours
		if _, err := e.haystack(text, n, 0, needleNames()[0], lowest); err != nil {
			return nil, err
		}
	}
	s, d, err := e.sampler(1, longest+answerTokens)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	answer := func(prompt []int32) (string, error) { return complete(s, prompt, answerTokens) }
	r := rand.New(rand.NewPCG(seed, 4))
	for _, length := range lengths {
		for _, depth := range depths {
			n := Needle{Length: length, Depth: depth}
			for range times {
				if ctx.Err() != nil {
					return nil, context.Cause(ctx)
				}
				found, err := e.ask(text[r.IntN(len(text)-length+1):], length, depth, r, answer)
				if err != nil {
					return nil, err
				}
				if n.Asked++; found {
					n.Found++
				}
			}
			e.printf("needle in %d tokens at %.0f %%: %d of %d found\n", length, 100*depth, n.Found, n.Asked)
			list = append(list, n)
		}
	}
	return list, nil
}

// ask hides a needle in the beginning of a text and reports whether the answer is right.
func (e *Evaluator) ask(text []int32, length int, depth float64, r *rand.Rand,
	answer func(prompt []int32) (string, error),
) (found bool, err error) {
	names := needleNames()
	name, number := names[r.IntN(len(names))], lowest+r.IntN(9*lowest)
	prompt, err := e.haystack(text, length, depth, name, number)
	if err != nil {
		return false, err
	}
	said, err := answer(prompt)
	return regexp.MustCompile(`\d+`).FindString(said) == strconv.Itoa(number), err
}

// lowest is the lowest number of a needle.
const lowest = 1_000_000

// haystack returns a prompt of length tokens: text with a needle at a depth, and the question for it.
func (e *Evaluator) haystack(text []int32, length int, depth float64, name string, number int) ([]int32, error) {
	n, err := e.Tokenizer.Encode(fmt.Sprintf(needleText, name, number))
	if err != nil {
		return nil, err
	}
	q, err := e.Tokenizer.Encode(fmt.Sprintf(questionText, name, name))
	if err != nil {
		return nil, err
	}
	before := e.Tokenizer.Prefix()
	hay := length - len(before) - len(n) - len(q)
	if hay < 0 {
		return nil, fmt.Errorf("length %d, want at least %d, that of needle and question", length, length-hay)
	}
	at := int(depth * float64(hay))
	return slices.Concat(before, text[:at], n, text[at:hay], q), nil
}

// complete returns the most likely text of so many tokens after a prompt.
func complete(s *tinylm.Sampler, prompt []int32, tokens int) (string, error) {
	if _, err := s.Add(prompt, tinylm.Sampling{MaxTokens: tokens}); err != nil {
		return "", err
	}
	var text strings.Builder
	for t, err := range s.Tokens() {
		if err != nil {
			return "", err
		}
		text.Write(t.Text)
	}
	return text.String(), nil
}
