package tinylm

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"gorgonia.org/tensor"
)

// Sampling is how the next token is chosen from the logits. The zero value takes the most likely one.
type Sampling struct {
	Temperature float64 // divides the logits; 0 takes the most likely token
	TopK        int     // only the k most likely tokens are drawn from; 0 is all of them
	Seed        uint64  // of the draws
}

// Validate returns an error that names the value that is out of its range.
func (s Sampling) Validate() error {
	switch {
	case !(s.Temperature >= 0) || math.IsInf(s.Temperature, 1):
		return fmt.Errorf("tinylm: sample: temperature is %v, want a number of at least 0", s.Temperature)
	case s.TopK < 0:
		return fmt.Errorf("tinylm: sample: top k is %d, want at least 0", s.TopK)
	}
	return nil
}

// Generate returns n tokens that follow prompt, which must not be empty. The same weights, prompt and Sampling give the
// same tokens. It runs the model on the first sequence of its batch, best one of batch 1 without gradients: what lies to the
// right of the text is padding, which causal attention does not look at, and a text longer than the sequence, which should
// have the length Config.Context, is cut on its left. A shorter sequence is faster and gives the same for texts that fit it.
func (m *Model) Generate(prompt []int32, n int, how Sampling) ([]int32, error) {
	if err := how.Validate(); err != nil {
		return nil, err
	}
	if len(prompt) == 0 {
		return nil, errors.New("tinylm: sample: the prompt is empty")
	}
	if n < 0 {
		return nil, fmt.Errorf("tinylm: sample: %d tokens, want at least 0", n)
	}
	if m.sums != nil {
		return nil, fmt.Errorf("tinylm: sample: %w", errAccumulates)
	}
	r := rand.New(rand.NewPCG(how.Seed, 3))
	text := slices.Clone(prompt)
	for range n {
		logits, err := m.last(text)
		if err != nil {
			return nil, err
		}
		id, err := pick(logits, how, r)
		if err != nil {
			return nil, err
		}
		text = append(text, int32(id))
	}
	return text[len(prompt):], nil
}

// last returns the logits [V] of the token that follows text.
func (m *Model) last(text []int32) ([]float64, error) {
	text = text[max(0, len(text)-m.seq):]
	m.wholeRows()
	clear(m.tokens[copy(m.tokens, text):])
	if err := m.Run(); err != nil {
		return nil, err
	}
	v, err := m.Logits()
	if err != nil {
		return nil, err
	}
	logits := make([]float64, m.weights.Config.Vocab)
	row := (len(text) - 1) * len(logits)
	for i := range logits {
		if v.Dtype() == tensor.Float32 {
			logits[i] = float64(v.Float32s()[row+i])
		} else {
			logits[i] = v.Float64s()[row+i]
		}
	}
	return logits, nil
}

// pick chooses a token by its logits, which it overwrites.
func pick(logits []float64, how Sampling, r *rand.Rand) (int, error) {
	order := make([]int, len(logits))
	for i := range order {
		order[i] = i
		if math.IsNaN(logits[i]) || math.IsInf(logits[i], 1) {
			return 0, fmt.Errorf("tinylm: sample: logit of token %d is %v", i, logits[i])
		}
	}
	slices.SortFunc(order, func(a, b int) int { // equal logits: the lower token first
		return cmp.Or(cmp.Compare(logits[b], logits[a]), cmp.Compare(a, b))
	})
	if how.Temperature == 0 {
		return order[0], nil
	}
	if how.TopK > 0 && how.TopK < len(order) {
		order = order[:how.TopK]
	}
	top, sum := logits[order[0]], 0.0
	for _, id := range order {
		logits[id] = math.Exp((logits[id] - top) / how.Temperature)
		sum += logits[id]
	}
	at := r.Float64() * sum
	for _, id := range order {
		if at -= logits[id]; at < 0 {
			return id, nil
		}
	}
	return order[len(order)-1], nil
}
