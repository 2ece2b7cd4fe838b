package evaluate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// Needle says how often a model finds a number in a long text: the share of the answers whose digits are all right.
type Needle struct {
	Length int     // tokens of the text, with needle and question
	Depth  float64 // where the number stands: 0 the beginning of the text, 1 its end
	Asked  int
	Right  int
}

// The needle and the question, with a name and, in the needle, a number.
const (
	needle   = "\nThe special magic number for %s is: %d.\n"
	question = "\nQuestion: What is the special magic number for %s?\nAnswer: The special magic number for %s is:"
	digits   = 7
)

// needleNames are what numbers are asked for.
var needleNames = []string{"Lisbon", "Nairobi", "Toronto", "Kyoto", "Oslo", "Lima", "Athens", "Dublin"}

// Needles hides a number of seven digits in the text of tokens, for each length and depth so many times, and asks for it:
// greedy decoding has to continue with its digits (after gkamradt's needle in a haystack, 2023). The text must be at
// least as long as the longest length. When ctx ends, it returns its cause.
func (e *Evaluator) Needles(ctx context.Context, text []int32, lengths []int, depths []float64, times int, seed uint64) (
	list []Needle, err error,
) {
	defer fault.Name(&err, "evaluate", "needle")
	longest := 0
	for _, n := range lengths {
		longest = max(longest, n)
	}
	if len(text) < longest || times < 1 {
		return nil, fmt.Errorf("a text of %d tokens for lengths up to %d, %d times", len(text), longest, times)
	}
	const room = 3 * digits // tokens of an answer, at most
	d, err := tinylm.NewDecoder(e.Weights, 1, longest+room, tinylm.DecodeOn(e.Backend, e.Precision))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	s, err := tinylm.NewSampler(d, e.Tokenizer)
	if err != nil {
		return nil, err
	}
	r := rand.New(rand.NewPCG(seed, 4))
	for _, length := range lengths {
		for _, depth := range depths {
			n := Needle{Length: length, Depth: depth, Asked: times}
			for range times {
				if ctx.Err() != nil {
					return nil, context.Cause(ctx)
				}
				name, number := needleNames[r.IntN(len(needleNames))], 1_000_000+r.IntN(9_000_000)
				prompt, err := e.haystack(text[r.IntN(len(text)-length+1):], length, depth, name, number)
				if err != nil {
					return nil, err
				}
				answer, err := complete(s, prompt, room)
				if err != nil {
					return nil, err
				}
				if strings.HasPrefix(strings.TrimLeft(answer, " \n"), fmt.Sprint(number)) {
					n.Right++
				}
			}
			list = append(list, n)
		}
	}
	return list, nil
}

// haystack returns a prompt of length tokens: text with a needle at a depth, and the question for it.
func (e *Evaluator) haystack(text []int32, length int, depth float64, name string, number int) ([]int32, error) {
	n, err := e.Tokenizer.Encode(fmt.Sprintf(needle, name, number))
	if err != nil {
		return nil, err
	}
	q, err := e.Tokenizer.Encode(fmt.Sprintf(question, name, name))
	if err != nil {
		return nil, err
	}
	hay := length - len(n) - len(q)
	if hay < 0 {
		return nil, fmt.Errorf("length %d is less than that of needle and question, %d", length, len(n)+len(q))
	}
	at := int(depth * float64(hay))
	prompt := make([]int32, 0, length)
	for _, part := range [][]int32{text[:at], n, text[at:hay], q} {
		prompt = append(prompt, part...)
	}
	return prompt, nil
}

// complete returns the most likely text of at most so many tokens after a prompt.
func complete(s *tinylm.Sampler, prompt []int32, tokens int) (string, error) {
	if _, err := s.Add(prompt, tinylm.Sampling{RepetitionPenalty: 1, MaxTokens: tokens}); err != nil {
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
