package recall

import (
	"fmt"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/gorgonia-nsa/nsa/internal/plots"
)

// plotSteps returns the accuracy of the models against the steps of their training, as PNG.
func (r Report) plotSteps() ([]byte, error) {
	p := newPlot(fmt.Sprintf("Recall of %d pairs in %d tokens", r.Task.Pairs, r.Task.Context), "steps of training")
	last := 1
	for i, run := range r.Runs {
		points := plotter.XYs{}
		for _, e := range run.Evaluations {
			points = append(points, plotter.XY{X: float64(e.Step), Y: Accuracy(e.Answers)})
			last = max(last, e.Step)
		}
		addLine(p, i, 0, string(run.Kind), points)
	}
	return r.png(p, false, 0, float64(last))
}

// plotDistances returns the accuracy of the trained models against the distance to the answer, as PNG.
func (r Report) plotDistances() ([]byte, error) {
	title := fmt.Sprintf("Recall of %d pairs, trained in %d tokens", r.Task.Pairs, r.Task.Context)
	p := newPlot(title, "tokens from the question back to its answer")
	plots.LogX(p)
	far := 2 * r.Task.Gap
	for i, run := range r.Runs {
		for _, context := range run.contexts() {
			name, dashes, points := string(run.Kind), 0, plotter.XYs{}
			if context != r.Task.Context {
				name, dashes = fmt.Sprintf("%s, asked at %d", run.Kind, context), 1
			}
			for _, b := range run.Final[context] {
				if len(b.Answers) > 0 {
					points = append(points, plotter.XY{X: float64(b.From+b.To) / 2, Y: Accuracy(b.Answers)})
				}
				far = max(far, b.To)
			}
			addLine(p, i, dashes, name, points)
		}
	}
	return r.png(p, true, float64(r.Task.Gap), math.Exp2(math.Ceil(math.Log2(float64(far)))))
}

// newPlot returns a plot of accuracies without lines.
func newPlot(title, x string) *plot.Plot {
	p := plots.New(title, x, "accuracy")
	p.Add(plots.Grid())
	return p
}

// addLine adds a line with the i-th colour, unless it has no points.
func addLine(p *plot.Plot, i, dashes int, name string, points plotter.XYs) {
	if len(points) > 0 {
		plots.Series(p, i, dashes, name, points)
	}
}

// png adds a line for guesses to p, whose X axis is from low to high, and returns p as PNG. Its legend is at the left
// or at the right.
func (r Report) png(p *plot.Plot, left bool, low, high float64) ([]byte, error) {
	guess := plotter.XYs{{X: low, Y: r.Task.Chance()}, {X: high, Y: r.Task.Chance()}}
	addLine(p, len(r.Runs), 2, fmt.Sprintf("a guess, %.4g", r.Task.Chance()), guess)
	plots.Legend(p, false, left)
	p.Legend.YOffs = vg.Points(90) // between the lines of good models and of guesses
	plots.Limits(p, low, high, 0, 1.02)
	return plots.PNG(plots.Width, plots.Height, []*plot.Plot{p})
}
