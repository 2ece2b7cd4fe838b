package evaluate

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// Question is a question with several answers, a line of a JSONL file.
type Question struct {
	Question string   `json:"question"`
	Choices  []string `json:"choices"`
	Answer   int      `json:"answer"` // index of the right choice
}

// maxLine bounds the bytes of a line.
const maxLine = 1 << 20

// ReadQuestions reads a JSONL file with a Question in each line. Lines without text are skipped.
func ReadQuestions(r io.Reader) (list []Question, err error) {
	defer fault.Name(&err, "evaluate", "questions")
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxLine)
	for line := 1; s.Scan(); line++ {
		if len(bytes.TrimSpace(s.Bytes())) == 0 {
			continue
		}
		var q Question
		if err := json.Unmarshal(s.Bytes(), &q); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		if len(q.Choices) < 2 || q.Answer < 0 || q.Answer >= len(q.Choices) {
			return nil, fmt.Errorf("line %d: answer %d of %d choices, want one of at least 2", line, q.Answer, len(q.Choices))
		}
		list = append(list, q)
	}
	if errors.Is(s.Err(), bufio.ErrTooLong) {
		return nil, fmt.Errorf("a line of more than %d bytes", maxLine)
	}
	return list, s.Err()
}

// Choices says how many questions a model answers right, if its answer is the choice with the highest likelihood after
// the question and a space, and if that is the highest likelihood per byte (acc and acc_norm of lm-evaluation-harness).
type Choices struct{ Asked, Right, RightPerByte int }

// Choose asks a model questions. When ctx ends, it returns its cause.
func (e *Evaluator) Choose(ctx context.Context, questions []Question) (c Choices, err error) {
	defer fault.Name(&err, "evaluate", "choices")
	models := map[int]*tinylm.Model{} // by tokens
	defer func() {
		for _, m := range models {
			err = errors.Join(err, m.Close())
		}
	}()
	for _, q := range questions {
		var best, bestPerByte int
		var high, highPerByte float64
		for i, choice := range q.Choices {
			if ctx.Err() != nil {
				return c, context.Cause(ctx)
			}
			l, err := e.likelihood(models, q.Question, " "+choice)
			if err != nil {
				return c, err
			}
			if i == 0 || l > high {
				best, high = i, l
			}
			if l /= float64(len(choice) + 1); i == 0 || l > highPerByte {
				bestPerByte, highPerByte = i, l
			}
		}
		c.Asked++
		if best == q.Answer {
			c.Right++
		}
		if bestPerByte == q.Answer {
			c.RightPerByte++
		}
	}
	return c, nil
}

// likelihood returns the logarithm of the probability of a text after another one.
func (e *Evaluator) likelihood(models map[int]*tinylm.Model, before, text string) (sum float64, err error) {
	tokens, err := e.Tokenizer.Encode(before)
	if err != nil {
		return 0, err
	}
	first := max(len(tokens), 1) // the first token of all has no likelihood
	after, err := e.Tokenizer.Encode(text)
	if err != nil {
		return 0, err
	}
	tokens = append(tokens, after...)
	size := 32
	for size < len(tokens) {
		size *= 2
	}
	m := models[size]
	if m == nil {
		if m, err = e.model(size); err != nil {
			return 0, err
		}
		models[size] = m
	}
	each, err := losses(m, tokens)
	if err != nil {
		return 0, err
	}
	for _, l := range each[first-1:] {
		sum -= l
	}
	return sum, nil
}
