package recall

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// Answer is the answer of a model to a question.
type Answer struct {
	Distance int  // from the question back to the pair, in tokens
	Right    bool // the right value has the highest logit
	Chosen   bool // NSA has selected the block of the pair
}

// exam asks a model questions.
type exam struct {
	*tinylm.Model
	task Task
	seed uint64
}

// newExam returns an exam with documents of t, one a row. Close ends it.
func newExam(w *tinylm.Weights, t Task, o Options) (*exam, error) {
	m, err := tinylm.NewModel(w, 1, t.Context, tinylm.WithParts(), o.machine())
	return &exam{m, t, o.Seed}, err
}

// Answers asks the questions of new documents, different from those of the training. The same number gives the same documents. When ctx
// ends, Answers returns its cause after the current document.
func (e *exam) Answers(ctx context.Context, documents int, number uint64) (answers []Answer, err error) {
	r := rand.New(rand.NewPCG(e.seed, 1+number))
	d := e.task.newDocument()
	for range documents {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		e.task.fill(r, d, e.task.Values)
		copy(e.Tokens(), d.tokens)
		copy(e.Targets(), d.targets)
		if err := e.Run(); err != nil {
			return nil, err
		}
		logits, err := e.Logits()
		if err != nil {
			return nil, err
		}
		blocks, err := e.blocks()
		if err != nil {
			return nil, err
		}
		first, vocab := e.task.Context-e.task.Questions, e.task.Vocab()
		for i, distance := range d.distances {
			at := first + i
			row, n := logits.Float32s()[at*vocab:][:vocab], len(blocks)/e.task.Context
			chosen := slices.Contains(blocks[at*n:][:n], int32((at-distance)/e.task.Values))
			answers = append(answers, Answer{distance, row[d.targets[at]] == slices.Max(row), chosen})
		}
	}
	return answers, nil
}

// blocks returns the blocks that each token has selected, [Context,KVHeads,n], or nil if the model selects none.
func (e *exam) blocks() ([]int32, error) {
	n := e.Layers()[0].Blocks
	if n == nil {
		return nil, nil
	}
	d, err := graph.HostTensor(n)
	if err != nil {
		return nil, err
	}
	return d.Int32s(), nil
}

// Ask asks a model the questions of o.AskDocs documents of t. The documents may be longer than those of the training, but must have the
// same number of pairs. When ctx ends, Ask returns its cause after the current document.
func Ask(ctx context.Context, w *tinylm.Weights, t Task, o Options) (answers []Answer, err error) {
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
	return e.Answers(ctx, o.AskDocs, 0)
}

// Accuracy returns the share of right answers.
func Accuracy(answers []Answer) float64 {
	return share(answers, func(a Answer) bool { return a.Right })
}

// Chosen returns the share of answers whose block was selected.
func Chosen(answers []Answer) float64 {
	return share(answers, func(a Answer) bool { return a.Chosen })
}

func share(answers []Answer, is func(Answer) bool) float64 {
	n := 0
	for _, a := range answers {
		if is(a) {
			n++
		}
	}
	return float64(n) / float64(max(1, len(answers)))
}

// Bin has the answers of a range of distances.
type Bin struct {
	From, To int // tokens, From <= distance < To
	Answers  []Answer
}

// byDistance puts answers into bins of equal width between the least and the largest distance of t.
func (t Task) byDistance(answers []Answer, bins int) []Bin {
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
