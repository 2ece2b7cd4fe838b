package convert

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/plots"
	"github.com/gorgonia-nsa/nsa/models/lm/evaluate"
)

// Result is the content of convert.json: what of a conversion has ended.
type Result struct {
	Options  map[string]string `json:"options"` // by flag
	Origin   map[string]string `json:"origin"`  // of the first call: date, commit, device, cores, version of Go, command
	Model    evaluate.Model    `json:"model"`   // the dense one
	HeldOut  HeldOut           `json:"held_out"`
	Phases   []Phase           `json:"phases"`
	Measured []Measurement     `json:"measured"`
}

// HeldOut is the text that is measured.
type HeldOut struct {
	Tokens int    `json:"tokens"`
	Hash   string `json:"hash"` // of the data, their split and the tokenizer: see corpus.Corpus
}

// Measurement is the perplexity of a model by position.
type Measurement struct {
	Stage      string               `json:"stage"` // dense, dense with its -rope-scaling, aligned or trained
	Perplexity *evaluate.Perplexity `json:"perplexity"`
}

// of returns the measurements with windows of a length.
func (r *Result) of(length int) (list []Measurement) {
	for _, m := range r.Measured {
		if m.Perplexity.Length == length {
			list = append(list, m)
		}
	}
	return list
}

// has reports whether a stage was measured with windows of a length.
func (r *Result) has(stage string, length int) bool {
	return slices.ContainsFunc(r.of(length), func(m Measurement) bool { return m.Stage == stage })
}

// lengths returns the lengths of the windows, ascending.
func (r *Result) lengths() (list []int) {
	for _, m := range r.Measured {
		list = append(list, m.Perplexity.Length)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// save writes convert.json.
func (c *conversion) save() error {
	content, err := json.Marshal(&c.result, json.Deterministic(true), jsontext.WithIndent("  "))
	if err == nil {
		err = files.Write(c.file(resultFile), append(content, '\n'))
	}
	return command.Flag("out", c.Out, err)
}

// draw writes the picture.
func (c *conversion) draw() error {
	picture, err := c.result.plot()
	if err == nil {
		err = files.Write(c.file(pictureFile), picture)
	}
	return command.Flag("out", c.Out, err)
}

// table returns the perplexities, a table for each length with a column for each stage.
func (r *Result) table() string {
	var b strings.Builder
	for _, length := range r.lengths() {
		stages := r.of(length)
		first := stages[0].Perplexity
		fmt.Fprintf(&b, "\nperplexity, windows: %d of %d tokens\n", first.Windows, length)
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
		row := func(name string, cell func(m Measurement) string) {
			fmt.Fprintf(w, "%s\t", name)
			for _, m := range stages {
				fmt.Fprintf(w, "%s\t", cell(m))
			}
			fmt.Fprintln(w)
		}
		row("tokens before", func(m Measurement) string { return m.Stage })
		for i, at := range first.Positions {
			row(fmt.Sprintf("%d to %d", at.From, at.To-1), func(m Measurement) string {
				return fmt.Sprintf("%.4g", m.Perplexity.Positions[i].Perplexity)
			})
		}
		row("all", func(m Measurement) string { return fmt.Sprintf("%.4g", m.Perplexity.All.Perplexity) })
		_ = w.Flush() // to a strings.Builder
	}
	return b.String()
}

// plot returns the losses by position in the longest windows as PNG, a line for each stage. A point stands at the
// geometric mean of its range.
func (r *Result) plot() ([]byte, error) {
	longest := slices.Max(r.lengths())
	stages := r.of(longest)
	p := plots.New(fmt.Sprintf("from dense to sparse attention, windows: %d of %d tokens", stages[0].Perplexity.Windows,
		longest), "tokens before", "loss, nats a token")
	plots.LogX(p)
	p.Add(plots.Grid())
	left, right, low, high := math.Inf(1), 0.0, math.Inf(1), 0.0
	for i, m := range stages {
		points := plotter.XYs{}
		for _, at := range m.Perplexity.Positions {
			x := math.Sqrt(float64(at.From) * float64(at.To-1))
			points = append(points, plotter.XY{X: x, Y: at.Loss})
			left, right, low, high = min(left, x), max(right, x), min(low, at.Loss), max(high, at.Loss)
		}
		plots.Series(p, i, i, m.Stage, points)
	}
	plots.Legend(p, true, false)
	room := max(0.15*(high-low), 0.01)
	plots.Limits(p, left/1.2, right*1.2, low-room, high+room)
	return plots.PNG(plots.Width, plots.Height, []*plot.Plot{p})
}
