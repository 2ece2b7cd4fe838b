package recall

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// evaluator asks a model questions.
type evaluator struct {
	*tinylm.Model
	task Task
	seed uint64
}

// newEvaluator returns an evaluator with documents of t, one a row. Close ends it.
func newEvaluator(w *tinylm.Weights, t Task, o Options) (*evaluator, error) {
	m, err := tinylm.NewModel(w, 1, t.Context, tinylm.WithParts(), o.machine())
	if err != nil {
		return nil, err
	}
	return &evaluator{m, t, o.Seed}, nil
}

// Answers asks the questions of new documents, different from those of the training. The same number gives the same documents. When ctx
// ends, Answers returns its cause after the current document.
func (e *evaluator) Answers(ctx context.Context, documents int, number uint64) (answers []Answer, err error) {
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
			selected := slices.Contains(blocks[at*n:][:n], int32((at-distance)/e.task.Values))
			answers = append(answers, Answer{distance, row[d.targets[at]] == slices.Max(row), selected})
		}
	}
	return answers, nil
}

// blocks returns the blocks that each token has selected, [Context,KVHeads,n], or nil if the model selects none.
func (e *evaluator) blocks() ([]int32, error) {
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

// Evaluate asks a model the questions of o.FinalDocs documents of t. The documents may be longer than those of the training, but must have
// the same number of pairs. When ctx ends, Evaluate returns its cause after the current document.
func Evaluate(ctx context.Context, w *tinylm.Weights, t Task, o Options) (answers []Answer, err error) {
	switch {
	case ctx == nil:
		return nil, errNoContext
	case w == nil:
		return nil, errors.New("recall: no weights")
	case value.IsNil(o.Backend):
		return nil, errNoBackend
	case o.FinalDocs < 1:
		return nil, fmt.Errorf("recall: an evaluation of %d documents, want at least 1", o.FinalDocs)
	}
	if err := t.Validate(); err != nil {
		return nil, err
	}
	if w.Config.Vocab != t.Vocab() {
		return nil, fmt.Errorf("recall: a task of %d tokens for a model of %d", t.Vocab(), w.Config.Vocab)
	}
	e, err := newEvaluator(w, t, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	return e.Answers(ctx, o.FinalDocs, 0)
}
