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

// newAsked returns a model that may be asked the questions of documents of t, one at a time.
func (o Options) newAsked(w *tinylm.Weights, t Task) (*tinylm.Model, error) {
	return tinylm.NewModel(w, 1, t.Context, tinylm.WithParts(), o.machine())
}

// ask asks m, of newAsked, the questions of new documents of t, different from those of the training. The same number
// gives the same documents. When ctx ends, ask returns its cause after the current document.
func (o Options) ask(
	ctx context.Context, m *tinylm.Model, t Task, documents int, number uint64,
) (answers []Answer, err error) {
	r, d := rand.New(rand.NewPCG(o.Seed, 1+number)), t.newDocument()
	for range documents {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		t.fill(r, d, t.Values)
		copy(m.Tokens(), d.tokens)
		copy(m.Targets(), d.targets)
		if err := m.Run(); err != nil {
			return nil, err
		}
		logits, err := m.Logits()
		if err != nil {
			return nil, err
		}
		var blocks []int32 // [Context,KVHeads,n]; none of a model that selects none
		if n := m.Layers()[0].Blocks; n != nil {
			x, err := graph.HostTensor(n)
			if err != nil {
				return nil, err
			}
			blocks = x.Int32s()
		}
		first, vocab, n := t.Context-t.Questions, t.Vocab(), len(blocks)/t.Context
		for i, distance := range d.distances {
			at := first + i
			row := logits.Float32s()[at*vocab:][:vocab]
			selected := slices.Contains(blocks[at*n:][:n], int32((at-distance)/t.Values))
			answers = append(answers, Answer{distance, row[d.targets[at]] == slices.Max(row), selected})
		}
	}
	return answers, nil
}

// Evaluate asks a model the questions of o.FinalDocs documents of t. The documents may be longer than those of the
// training, but must have the same number of pairs. When ctx ends, Evaluate returns its cause after the current
// document.
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
	m, err := o.newAsked(w, t)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	return o.ask(ctx, m, t, o.FinalDocs, 0)
}
