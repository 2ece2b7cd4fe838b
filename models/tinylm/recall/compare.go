package recall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
)

// bins is the number of ranges of distances.
const bins = 12

// Run has the results of one model.
type Run struct {
	Kind       Kind
	Parameters int
	Points     []Point       // evaluations during training
	Asked      map[int][]Bin // answers of the trained model by context, then by distance
}

// contexts returns the contexts at which the model was asked, ascending.
func (r Run) contexts() []int { return slices.Sorted(maps.Keys(r.Asked)) }

// Compare trains models of the given kinds one after the other. It asks each in documents of the task and in documents of asked
// tokens, which may be longer or shorter. It writes its progress and a table to w.
func Compare(ctx context.Context, t Task, kinds []Kind, o Options, asked int, w io.Writer) (runs []Run, err error) {
	tasks := []Task{t}
	if asked != t.Context {
		other := t
		other.Context = asked
		tasks = append(tasks, other)
	}
	for _, t := range tasks {
		if err := t.Validate(); err != nil {
			return nil, err
		}
	}
	for _, k := range kinds {
		run := Run{Kind: k, Parameters: t.Model(k).Parameters(), Asked: map[int][]Bin{}}
		fmt.Fprintf(w, "%s, %d parameters\n", k, run.Parameters)
		weights, err := Train(ctx, t, k, o, func(p Point) {
			run.Points = append(run.Points, p)
			fmt.Fprintf(w, "  step %5d  documents of up to %6d  loss %.3f  right %5.1f %%  chosen %5.1f %%  %6.1f s\n",
				p.Step, slices.Max(o.lengths(t, p.Step-1)), p.Loss, 100*Accuracy(p.Answers), 100*Chosen(p.Answers), p.Elapsed.Seconds())
		})
		if err != nil {
			return nil, err
		}
		for _, t := range tasks {
			answers, askErr := Ask(ctx, weights, t, o)
			if err = errors.Join(err, askErr); err == nil {
				run.Asked[t.Context] = t.byDistance(answers, bins)
			}
		}
		if err := errors.Join(err, weights.Free()); err != nil {
			return nil, err
		}
		runs = append(runs, run)
	}
	writeTable(w, tasks, runs)
	return runs, nil
}

// writeTable writes the share of right answers of each model, by distance.
func writeTable(w io.Writer, tasks []Task, runs []Run) {
	for _, t := range tasks {
		fmt.Fprintf(w, "\nright answers in %%, documents of %d tokens, by tokens back to the answer; a guess has %.3g %%\n%-22s    all", t.Context, 100*t.Chance(), "")
		for _, b := range t.byDistance(nil, bins) {
			fmt.Fprintf(w, " %6s", fmt.Sprintf("<%d", b.To))
		}
		for _, run := range runs {
			var all []Answer
			for _, b := range run.Asked[t.Context] {
				all = append(all, b.Answers...)
			}
			fmt.Fprintf(w, "\n%-22s %6.2f", run.Kind, 100*Accuracy(all))
			for _, b := range run.Asked[t.Context] {
				fmt.Fprintf(w, " %6.2f", 100*Accuracy(b.Answers))
			}
		}
		fmt.Fprintln(w)
	}
}
