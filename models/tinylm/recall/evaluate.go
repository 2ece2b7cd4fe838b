package recall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/gather"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// newAsked returns a model that may be asked the questions of documents of t, one at a time.
func (o Options) newAsked(w *tinylm.Weights, t Task) (*tinylm.Model, error) {
	return tinylm.NewModel(w, 1, t.Context, append(o.machine(), tinylm.WithParts(), tinylm.WithContext(o.ranks()))...)
}

// ask asks m, of newAsked, the questions of new documents of t, different from those of the training. The same number
// gives the same documents. When ctx ends, ask returns its cause after the current document.
func (o Options) ask(
	ctx context.Context, m *tinylm.Model, t Task, documents int, number uint64,
) (answers []Answer, err error) {
	own, err := nn.ContextTokens(o.rank(), o.ranks(), t.Context)
	if err != nil {
		return nil, err
	}
	first, vocab := t.Context-t.Questions, t.Vocab()
	asked := slices.ContainsFunc(own, func(at int) bool { return at >= first })
	r, d := rand.New(rand.NewPCG(o.Seed, 1+number)), t.newDocument()
	for range documents {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		t.fill(r, d, t.Values)
		if err := errors.Join(m.Fill(d.tokens, d.targets), m.Run()); err != nil {
			return nil, err
		}
		begin := len(answers)
		for _, distance := range d.distances {
			answers = append(answers, Answer{Distance: distance})
		}
		if !asked { // other ranks have the questions
			continue
		}
		logits, err := m.Logits()
		if err != nil {
			return nil, err
		}
		layers := m.Layers()
		var blocks []int32 // [len(own),KVHeads,n]; none of a model that selects none
		if n := layers[len(layers)-1].Blocks; n != nil {
			x, err := graph.HostTensor(n)
			if err != nil {
				return nil, err
			}
			blocks = x.Int32s()
		}
		n := len(blocks) / len(own)
		for i, at := range own {
			if at < first {
				continue
			}
			a, row := &answers[begin+at-first], logits.Float32s()[i*vocab:][:vocab]
			a.Right = row[d.targets[at]] == slices.Max(row)
			a.Selected = slices.Contains(blocks[i*n:][:n], int32((at-a.Distance)/t.Values))
		}
	}
	all, err := gather.JSON(o.Group, "answers", answers)
	if err != nil {
		return nil, err
	}
	for _, theirs := range all { // a rank's own ones, and no others
		for i, a := range theirs {
			answers[i].Right, answers[i].Selected = answers[i].Right || a.Right, answers[i].Selected || a.Selected
		}
	}
	return answers, nil
}

// Evaluate asks a model the questions of o.FinalDocs documents of t. The documents may be longer than those of the
// training, but must have the same number of pairs. With o.Group they lie over the ranks, which all call it and get all
// answers. When ctx ends, Evaluate returns its cause after the current document.
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
	if err := cmp.Or(t.Validate(), fault.In("recall", "", o.checkRanks(t.Context))); err != nil {
		return nil, err
	}
	if w.Config.Vocab != t.Vocab() {
		return nil, fmt.Errorf("recall: a task of %d tokens for a model of %d", t.Vocab(), w.Config.Vocab)
	}
	m, err := o.newAsked(w, t)
	if err != nil {
		return nil, err
	}
	defer func() {
		o.fail(err)
		err = errors.Join(err, m.Close())
	}()
	return o.ask(ctx, m, t, o.FinalDocs, 0)
}
