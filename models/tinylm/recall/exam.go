package recall

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// Answer is what a model said to a question.
type Answer struct {
	Distance int // of the question from the pair, in tokens
	Right    bool
}

// exam asks a model.
type exam struct {
	*tinylm.Model
	task Task
	seed uint64
}

// newExam returns an exam of documents of t, one in a row. Close ends it.
func newExam(w *tinylm.Weights, t Task, o Options) (*exam, error) {
	m, err := tinylm.NewModel(w, 1, t.Context, o.machine())
	return &exam{m, t, o.Seed}, err
}

// Answers asks the questions of documents, other ones than those of the training. The same number gives the same documents.
func (e *exam) Answers(documents int, number uint64) (answers []Answer, err error) {
	r := rand.New(rand.NewPCG(e.seed, 1+number))
	d := e.task.NewDocument()
	for range documents {
		e.task.Fill(r, d, e.task.Values)
		copy(e.Tokens(), d.Tokens)
		copy(e.Targets(), d.Targets)
		if err := e.Run(); err != nil {
			return nil, err
		}
		logits, err := e.Logits()
		if err != nil {
			return nil, err
		}
		first, vocab := e.task.Context-e.task.Questions, e.task.Vocab()
		for i, distance := range d.Distances {
			row := logits.Float32s()[(first+i)*vocab:][:vocab]
			answers = append(answers, Answer{distance, row[d.Targets[first+i]] == slices.Max(row)})
		}
	}
	return answers, nil
}

// Ask asks a model the questions of documents of t, which may be longer than those of its training. It asks for the same
// pairs: t has the vocabulary of the model.
func Ask(w *tinylm.Weights, t Task, o Options, documents int) (answers []Answer, err error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	if w.Config.Vocab != t.Vocab() {
		return nil, fmt.Errorf("recall: a task of %d tokens for a model of %d", t.Vocab(), w.Config.Vocab)
	}
	e, err := newExam(w, t, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	return e.Answers(documents, 0)
}

// Accuracy returns the share of right answers.
func Accuracy(answers []Answer) float64 {
	right := 0
	for _, a := range answers {
		if a.Right {
			right++
		}
	}
	return float64(right) / float64(max(1, len(answers)))
}

// Bin are the answers of a range of distances.
type Bin struct {
	From, To int // tokens, From <= distance < To
	Answers  []Answer
}

// ByDistance sorts answers into bins of equal width between the least and the largest distance of t.
func (t Task) ByDistance(answers []Answer, bins int) []Bin {
	list, width := make([]Bin, bins), t.Farthest()+1-t.Gap
	for i := range list {
		list[i].From, list[i].To = t.Gap+i*width/bins, t.Gap+(i+1)*width/bins
	}
	for _, a := range answers {
		i, _ := slices.BinarySearchFunc(list, a.Distance, func(b Bin, distance int) int { return b.To - distance - 1 })
		list[i].Answers = append(list[i].Answers, a)
	}
	return list
}
