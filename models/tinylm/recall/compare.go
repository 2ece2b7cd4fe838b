package recall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/models/tinylm/inspect"
)

// bins is the number of ranges of distances.
const bins = 12

// Run has the results of one model.
type Run struct {
	Kind        Kind
	Parameters  int
	Evaluations []Evaluation    // during training
	Final       map[int][]Bin   // answers of the trained model by context, then by distance
	Look        *inspect.Report // on a document, of NSA; nil for other models
}

// contexts returns the contexts of Final, ascending.
func (r Run) contexts() []int { return slices.Sorted(maps.Keys(r.Final)) }

// Compare trains models of the given kinds on t one after the other. It evaluates each in documents of t and of other,
// a task of the same pairs in longer or shorter documents; other may be t. It writes its progress and a table to w.
// With o.Group all ranks call it; rank 0 alone looks at a model.
func Compare(ctx context.Context, t, other Task, kinds []Kind, o Options, w io.Writer) (runs []Run, err error) {
	switch {
	case ctx == nil:
		return nil, errNoContext
	case value.IsNil(w):
		return nil, errors.New("recall: no writer")
	case len(kinds) == 0:
		return nil, fmt.Errorf("recall: no models to compare, want some of %v", Kinds())
	}
	for _, k := range kinds {
		if err := k.check(); err != nil {
			return nil, err
		}
	}
	if err := cmp.Or(o.Validate(t), other.Validate(), fault.In("recall", "", o.checkRanks(other.Context))); err != nil {
		return nil, err
	}
	if other.Pairs != t.Pairs || other.Values != t.Values {
		return nil, fmt.Errorf("recall: other documents have %d pairs of %d values, want %d of %d", other.Pairs,
			other.Values, t.Pairs, t.Values)
	}
	tasks := []Task{t}
	if other.Context != t.Context {
		tasks = append(tasks, other)
	}
	for _, k := range kinds {
		run := Run{Kind: k, Parameters: t.Model(k).Parameters(), Final: map[int][]Bin{}}
		fmt.Fprintf(w, "%s, %d parameters\n", k, run.Parameters)
		weights, err := Train(ctx, t, k, o, func(e Evaluation) {
			run.Evaluations = append(run.Evaluations, e)
			fmt.Fprintf(w, "step %5d  length %6d  loss %.3f  right %5.1f %%  selected %5.1f %%  %5.0f s\n",
				e.Step, slices.Max(o.lengths(t, e.Step-1)), e.Loss,
				100*Accuracy(e.Answers), 100*SelectionRate(e.Answers), e.Elapsed.Seconds())
		})
		if err != nil {
			return nil, err
		}
		for _, t := range tasks {
			answers, evalErr := Evaluate(ctx, weights, t, o)
			if err = errors.Join(err, evalErr); err == nil {
				run.Final[t.Context] = t.byDistance(answers, bins)
			}
		}
		if k == NSA && err == nil && o.rank() == 0 {
			run.Look, err = t.look(weights, o)
		}
		if err := errors.Join(err, weights.Free()); err != nil {
			return nil, err
		}
		if run.Look != nil {
			fmt.Fprintln(w, run.Look.Summary())
		}
		runs = append(runs, run)
	}
	writeTable(w, tasks, runs)
	return runs, nil
}

// writeTable writes the share of right answers of each model, by distance in few ranges.
func writeTable(w io.Writer, tasks []Task, runs []Run) {
	const ranges = 4
	fmt.Fprintf(w, "\nright answers in %%, by tokens back to the answer\n(a guess is right in %.3g %%)\n",
		100*tasks[0].Chance())
	for _, t := range tasks {
		fmt.Fprintf(w, "\n%-21s    all", fmt.Sprintf("of %d tokens", t.Context))
		for _, b := range t.byDistance(nil, ranges) {
			fmt.Fprintf(w, " %7s", fmt.Sprintf("<%d", b.To))
		}
		for _, run := range runs {
			var all []Answer
			for _, b := range run.Final[t.Context] {
				all = append(all, b.Answers...)
			}
			fmt.Fprintf(w, "\n%-21s %6.2f", run.Kind, 100*Accuracy(all))
			for _, b := range t.byDistance(all, ranges) {
				fmt.Fprintf(w, " %7.2f", 100*Accuracy(b.Answers))
			}
		}
		fmt.Fprintln(w)
	}
}

// Answer is the answer of a model to a question.
type Answer struct {
	Distance int  // from the question back to the pair, in tokens
	Right    bool // the right value has the highest logit
	Selected bool // NSA has selected the block of the pair
}

// Accuracy returns the share of right answers.
func Accuracy(answers []Answer) float64 {
	return share(answers, func(a Answer) bool { return a.Right })
}

// SelectionRate returns the share of answers whose block was selected.
func SelectionRate(answers []Answer) float64 {
	return share(answers, func(a Answer) bool { return a.Selected })
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
