package evaluate

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/quote"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// Question is a question with several answers, a line of a JSONL file.
type Question struct {
	Question string   `json:"question"` // or any other text before the choice
	Choices  []string `json:"choices"`
	Answer   int      `json:"answer"` // index of the right choice
}

// Bounds of a file of questions.
const (
	maxLine      = 1 << 20 // bytes
	maxQuestions = 1 << 20
)

// ReadQuestions reads a JSONL file with a Question in each line. It skips empty lines and ignores other members.
func ReadQuestions(r io.Reader) (list []Question, err error) {
	defer fault.Name(&err, "evaluate", "questions")
	if value.IsNil(r) {
		return nil, errors.New("no reader")
	}
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxLine)
	line := 1
	for ; s.Scan(); line++ {
		if len(bytes.TrimSpace(s.Bytes())) == 0 {
			continue
		}
		q, err := parseQuestion(s.Bytes())
		if err == nil && len(list) == maxQuestions {
			err = fmt.Errorf("more than %d questions", maxQuestions)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		list = append(list, q)
	}
	if errors.Is(s.Err(), bufio.ErrTooLong) {
		return nil, fmt.Errorf("line %d: more than %d bytes", line, maxLine)
	}
	if s.Err() == nil && len(list) == 0 {
		return nil, errors.New("no question")
	}
	return list, s.Err()
}

func parseQuestion(line []byte) (Question, error) {
	q := Question{Answer: -1}
	if err := json.Unmarshal(line, &q); err != nil {
		return q, quote.Error(err)
	}
	switch {
	case len(q.Choices) < 2:
		return q, fmt.Errorf("%d choices, want at least 2", len(q.Choices))
	case q.Answer < 0 || q.Answer >= len(q.Choices):
		return q, fmt.Errorf("answer is %d or missing, want 0 to %d", q.Answer, len(q.Choices)-1)
	}
	for i, c := range q.Choices {
		if c == "" {
			return q, fmt.Errorf("choice %d is empty", i)
		}
	}
	return q, nil
}

// Choices says how many questions a model answers right, if its answer is the choice with the highest likelihood, and
// if it is that with the highest logarithm of the likelihood by character: acc and acc_norm of lm-evaluation-harness.
type Choices struct {
	Asked     int      `json:"asked"`
	Right     int      `json:"right"`      // acc, times Asked
	RightNorm int      `json:"right_norm"` // acc_norm, times Asked
	Guess     float64  `json:"guess"`      // mean share of right answers of a guess
	Answers   []Answer `json:"answers"`
}

// Answer has the logarithms of the likelihoods of the choices of a question, in nats.
type Answer struct {
	LogLikelihoods []float64 `json:"log_likelihoods"`
	Answer         int       `json:"answer"` // index of the right choice
}

// Choose asks a model questions. When ctx ends, Choose returns its cause.
func (e *Evaluator) Choose(ctx context.Context, questions []Question) (_ *Choices, err error) {
	defer fault.Name(&err, "evaluate", "choices")
	if err := e.check(ctx); err != nil {
		return nil, err
	}
	models := map[int]*tinylm.Model{} // by tokens
	defer func() {
		for _, m := range models {
			err = errors.Join(err, m.Close())
		}
	}()
	c := &Choices{}
	for i, q := range questions {
		a := Answer{Answer: q.Answer}
		var best, bestNorm int
		var high, highNorm float64
		for j, choice := range q.Choices {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			l, err := e.logLikelihood(models, q.Question, choice)
			if err != nil {
				return nil, fmt.Errorf("question %d, choice %d: %w", i+1, j, err)
			}
			a.LogLikelihoods = append(a.LogLikelihoods, l)
			if j == 0 || l > high {
				best, high = j, l
			}
			if l /= float64(max(1, utf8.RuneCountInString(choice))); j == 0 || l > highNorm {
				bestNorm, highNorm = j, l
			}
		}
		c.Asked++
		if best == q.Answer {
			c.Right++
		}
		if bestNorm == q.Answer {
			c.RightNorm++
		}
		c.Guess += 1 / float64(len(q.Choices)) / float64(len(questions))
		c.Answers = append(c.Answers, a)
		if every := max(1, len(questions)/10); c.Asked%every == 0 {
			e.printf("%d of %d questions: %d right\n", c.Asked, len(questions), c.Right)
		}
	}
	return c, nil
}

// leastTokens is the size of the smallest model of logLikelihood. Each larger one has twice as many tokens.
const leastTokens = 32

// logLikelihood returns the logarithm of the likelihood of a choice after a question and a space. The tokens are those
// of the joined text; of the choice are those behind the last token that the question alone has, too. Without a
// question a document begins.
func (e *Evaluator) logLikelihood(models map[int]*tinylm.Model, question, choice string) (sum float64, err error) {
	question = strings.TrimRight(question, " ") // else the space is a token of its own
	alone, err := e.Tokenizer.Encode(question)
	if err != nil {
		return 0, err
	}
	joined, err := e.Tokenizer.Encode(question + " " + choice)
	if err != nil {
		return 0, err
	}
	same := 0
	for same < min(len(alone), len(joined)) && alone[same] == joined[same] {
		same++
	}
	tokens := e.Tokenizer.Prefix()
	if begin := e.Tokenizer.Separator(); len(tokens) == 0 && same == 0 && begin >= 0 {
		tokens = append(tokens, begin) // the first token of all has no likelihood
	}
	first := max(1, len(tokens)+same) // of the choice
	tokens = append(tokens, joined...)
	size := leastTokens
	for size < len(tokens) {
		size *= 2
	}
	switch {
	case size > MaxLength:
		return 0, fmt.Errorf("%d tokens, want at most %d", len(tokens), MaxLength)
	case first >= len(tokens):
		return 0, errors.New("the choice adds no token to the question")
	}
	m := models[size]
	if m == nil {
		if m, err = e.model(size); err != nil {
			return 0, err
		}
		models[size] = m
	}
	list, err := losses(m, tokens)
	if err != nil {
		return 0, err
	}
	for _, l := range list[first-1:] {
		sum -= l
	}
	return sum, nil
}
