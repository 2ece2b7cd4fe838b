package recall

import (
	"bytes"
	"fmt"
	"image/color"
	"image/png"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// series is a line of a plot.
type series struct {
	name   string
	points plotter.XYs
	color  int  // index of plotutil.Color, the same for all lines of a model
	dashed bool // for contexts other than that of the training, and for guesses
}

// plotSteps returns the accuracy of the models against the steps of their training, as PNG.
func (r Report) plotSteps() ([]byte, error) {
	var list []series
	last := 1
	for i, run := range r.Runs {
		s := series{name: string(run.Kind), points: plotter.XYs{}, color: i}
		for _, p := range run.Points {
			s.points = append(s.points, plotter.XY{X: float64(p.Step), Y: Accuracy(p.Answers)})
			last = max(last, p.Step)
		}
		list = append(list, s)
	}
	title := fmt.Sprintf("Recall of %d pairs in %d tokens", r.Task.Pairs, r.Task.Context)
	return r.draw(title, "steps of training", 0, float64(last), list, plot.DefaultTicks{}, nil)
}

// plotDistances returns the accuracy of the trained models against the distance to the answer, as PNG.
func (r Report) plotDistances() ([]byte, error) {
	var list []series
	far := 2 * r.Task.Gap
	for i, run := range r.Runs {
		for _, asked := range run.contexts() {
			s := series{name: string(run.Kind), color: i, dashed: asked != r.Task.Context}
			if s.dashed {
				s.name = fmt.Sprintf("%s, asked at %d", run.Kind, asked)
			}
			for _, b := range run.Asked[asked] {
				if len(b.Answers) > 0 {
					s.points = append(s.points, plotter.XY{X: float64(b.From+b.To) / 2, Y: Accuracy(b.Answers)})
				}
				far = max(far, b.To)
			}
			list = append(list, s)
		}
	}
	title := fmt.Sprintf("Recall of %d pairs, trained in %d tokens", r.Task.Pairs, r.Task.Context)
	return r.draw(title, "tokens from the question back to its answer", float64(r.Task.Gap), float64(far), list, plot.TickerFunc(powersOfTwo), plot.LogScale{})
}

// draw returns a plot of accuracies, with a line for guesses. The library panics at ranges that it cannot draw: draw returns this as an error.
func (r Report) draw(title, x string, low, high float64, list []series, ticks plot.Ticker, scale plot.Normalizer) (out []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("plot: %v", p)
		}
	}()
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, "accuracy"
	p.X.Tick.Marker = ticks
	if scale != nil {
		p.X.Scale = scale
	}
	p.Legend.YOffs, p.Legend.XOffs = vg.Points(90), vg.Points(-8) // between the lines of good models and of guesses
	if p.Legend.Left = scale != nil; p.Legend.Left {
		p.Legend.XOffs = vg.Points(8)
	}
	for _, style := range []*text.Style{&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.Legend.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label} {
		style.Font.Variant = "Sans"
	}
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = color.Gray{Y: 220}, color.Gray{Y: 236}
	p.Add(grid)
	guess := plotter.XYs{{X: low, Y: r.Task.Chance()}, {X: high, Y: r.Task.Chance()}}
	list = append(list, series{name: fmt.Sprintf("a guess, %.4g", r.Task.Chance()), points: guess, color: len(r.Runs), dashed: true})
	for _, s := range list {
		if len(s.points) == 0 {
			continue
		}
		line, err := plotter.NewLine(s.points)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = plotutil.Color(s.color), vg.Points(1.6)
		if s.dashed {
			line.Dashes = plotutil.Dashes(1)
		}
		p.Add(line)
		p.Legend.Add(s.name, line)
	}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = low, high, 0, 1.02 // after Add, which widens the axes
	canvas := vgimg.New(vg.Points(560), vg.Points(340))
	p.Draw(draw.Crop(draw.New(canvas), vg.Points(4), vg.Points(-14), vg.Points(4), vg.Points(-6)))
	var b bytes.Buffer
	err = png.Encode(&b, canvas.Image())
	return b.Bytes(), err
}

// powersOfTwo returns a tick for each power of two in [low, high].
func powersOfTwo(low, high float64) (ticks []plot.Tick) {
	for v := 1.0; v <= high; v *= 2 {
		if v >= low {
			ticks = append(ticks, plot.Tick{Value: v, Label: strconv.Itoa(int(v))})
		}
	}
	return ticks
}
