package recall

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/origin"
	"github.com/gorgonia-nsa/nsa/internal/plots"
	"github.com/gorgonia-nsa/nsa/models/tinylm/inspect"
)

// Report has the runs of one command.
type Report struct {
	Task   Task
	Runs   []Run
	Origin []Column // columns that are the same in all rows, such as commit and machine
}

// Column is a column of the table that has the same value in all rows.
type Column = origin.Column

// Save writes recall_CONTEXT.csv and the plots into a folder, and the look at NSA into its folder look. It returns
// their paths.
func (r Report) Save(folder string) (paths []string, err error) {
	defer fault.Name(&err, "recall", "report")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	for _, f := range []struct {
		suffix  string
		content func() ([]byte, error)
	}{{".csv", r.csv}, {"_steps.png", r.plotSteps}, {"_distance.png", r.plotDistances}} {
		data, err := f.content()
		if err != nil {
			return nil, err
		}
		path := filepath.Join(folder, fmt.Sprintf("recall_%d%s", r.Task.Context, f.suffix))
		if err := files.Write(path, data); err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	for _, run := range r.Runs {
		if run.Look == nil {
			continue
		}
		look := filepath.Join(folder, "look")
		if err := run.Look.Save(look); err != nil {
			return nil, err
		}
		paths = append(paths, filepath.Join(look, inspect.PageFile))
	}
	return paths, nil
}

// csv returns the table: a row for each evaluation of the training, which has a step, and a row for each range of
// distances, which has none.
func (r Report) csv() ([]byte, error) {
	var header, values []string
	for _, c := range r.Origin {
		header, values = append(header, c.Name), append(values, c.Value)
	}
	lines := [][]string{append(header, "context", "pairs", "chance", "model", "parameters", "step", "tokens",
		"seconds", "loss", "asked", "from", "to", "questions", "accuracy", "chosen")}
	for _, run := range r.Runs {
		row := func(answers []Answer, columns ...any) {
			line := slices.Clone(values)
			columns = append([]any{r.Task.Context, r.Task.Pairs, r.Task.Chance(), run.Kind, run.Parameters}, columns...)
			for _, c := range append(columns, len(answers), Accuracy(answers), SelectionRate(answers)) {
				if x, ok := c.(float64); ok {
					c = fmt.Sprintf("%.4f", x)
				}
				line = append(line, fmt.Sprint(c))
			}
			lines = append(lines, line)
		}
		for _, e := range run.Evaluations {
			row(e.Answers, e.Step, e.Tokens, fmt.Sprintf("%.1f", e.Elapsed.Seconds()), e.Loss, r.Task.Context, "", "")
		}
		for _, context := range run.contexts() {
			for _, b := range run.Final[context] {
				row(b.Answers, "", "", "", "", context, b.From, b.To)
			}
		}
	}
	var b bytes.Buffer
	err := csv.NewWriter(&b).WriteAll(lines)
	return b.Bytes(), err
}

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
