package recall

import (
	"fmt"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/gorgonia-nsa/nsa/internal/plots"
)

// series is a line of a plot.
type series struct {
	name   string
	points plotter.XYs
	color  int // index of plots.Color, the same for all lines of a model
	dashes int // 1 for contexts other than that of the training, 2 for guesses
}

// plotSteps returns the accuracy of the models against the steps of their training, as PNG.
func (r Report) plotSteps() ([]byte, error) {
	var list []series
	last := 1
	for i, run := range r.Runs {
		s := series{name: string(run.Kind), points: plotter.XYs{}, color: i}
		for _, e := range run.Evaluations {
			s.points = append(s.points, plotter.XY{X: float64(e.Step), Y: Accuracy(e.Answers)})
			last = max(last, e.Step)
		}
		list = append(list, s)
	}
	p := plots.New(fmt.Sprintf("Recall of %d pairs in %d tokens", r.Task.Pairs, r.Task.Context), "steps of training", "accuracy")
	plots.Legend(p, false, false)
	return r.draw(p, 0, float64(last), list)
}

// plotDistances returns the accuracy of the trained models against the distance to the answer, as PNG.
func (r Report) plotDistances() ([]byte, error) {
	var list []series
	far := 2 * r.Task.Gap
	for i, run := range r.Runs {
		for _, context := range run.contexts() {
			s := series{name: string(run.Kind), color: i}
			if context != r.Task.Context {
				s.dashes = 1
				s.name = fmt.Sprintf("%s, asked at %d", run.Kind, context)
			}
			for _, b := range run.Final[context] {
				if len(b.Answers) > 0 {
					s.points = append(s.points, plotter.XY{X: float64(b.From+b.To) / 2, Y: Accuracy(b.Answers)})
				}
				far = max(far, b.To)
			}
			list = append(list, s)
		}
	}
	title := fmt.Sprintf("Recall of %d pairs, trained in %d tokens", r.Task.Pairs, r.Task.Context)
	p := plots.New(title, "tokens from the question back to its answer", "accuracy")
	plots.LogX(p)
	plots.Legend(p, false, true)
	return r.draw(p, float64(r.Task.Gap), math.Exp2(math.Ceil(math.Log2(float64(far)))), list)
}

// draw draws accuracies, and a line for guesses, into p, whose X axis is from low to high. It returns p as PNG.
func (r Report) draw(p *plot.Plot, low, high float64, list []series) ([]byte, error) {
	p.Legend.YOffs = vg.Points(90) // between the lines of good models and of guesses
	p.Add(plots.Grid())
	guess := plotter.XYs{{X: low, Y: r.Task.Chance()}, {X: high, Y: r.Task.Chance()}}
	list = append(list, series{name: fmt.Sprintf("a guess, %.4g", r.Task.Chance()), points: guess, color: len(r.Runs), dashes: 2})
	for _, s := range list {
		if len(s.points) == 0 {
			continue
		}
		plots.Series(p, s.color, s.dashes, s.name, s.points)
	}
	plots.Limits(p, low, high, 0, 1.02)
	return plots.PNG(plots.Width, plots.Height, []*plot.Plot{p})
}
