package runlog

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// maxPoints is the number of points that a line is thinned to.
const maxPoints = 800

// Colours of the lines: single steps pale, what is to be read strong.
var (
	stepColor    = color.RGBA{R: 170, G: 196, B: 224, A: 255}
	meanColor    = color.RGBA{R: 31, G: 97, B: 161, A: 255}
	heldOutColor = color.RGBA{R: 206, G: 77, B: 19, A: 255}
)

// curve is a plot over the steps.
type curve struct {
	file    string
	label   string               // of the Y axis
	value   func(r *row) float64 // of a step
	mean    bool                 // the running mean is drawn too
	log     bool                 // the Y axis is logarithmic
	heldOut bool                 // the held-out losses are drawn too
}

// curves returns the plots of a run.
func curves() []curve {
	return []curve{
		{file: "loss.png", label: "loss, nats a token", value: func(r *row) float64 { return r.Loss }, mean: true, heldOut: true},
		{file: "lr.png", label: "learning rate", value: func(r *row) float64 { return r.LR }},
		{file: "grad_norm.png", label: "global norm of the gradients", value: func(r *row) float64 { return r.GradNorm }, mean: true, log: true},
		{file: "rate.png", label: "tokens per second", value: func(r *row) float64 { return r.TokensPerSec }, mean: true},
	}
}

// line is one line of a plot.
type line struct {
	label  string
	points plotter.XYs
	color  color.Color
	width  float64
	circle float64 // radius; 0 for none
}

// lines returns what the plot of c shows.
func (c curve) lines(rows []row, o Options) []line {
	var steps, heldOut plotter.XYs
	for i := range rows {
		r := &rows[i]
		if !r.onlyHeldOut {
			steps = c.add(steps, r.Number, c.value(r))
		}
		if c.heldOut && r.heldOut != 0 {
			heldOut = c.add(heldOut, r.Number, r.heldOut)
		}
	}
	if !c.mean {
		return []line{{c.label, thin(steps), meanColor, 1.8, 0}}
	}
	name := "held out"
	if n := len(heldOut); n > 0 {
		name += ", at the end " + strconv.FormatFloat(heldOut[n-1].Y, 'f', 3, 64)
		if b := o.BytesPerToken; b > 0 {
			name += " (" + strconv.FormatFloat(bitsPerByte(heldOut[n-1].Y, b), 'f', 3, 64) + " bits a byte)"
		}
	}
	return []line{
		{"each step", thin(steps), stepColor, 0.8, 0},
		{"running mean", thin(runningMean(steps)), meanColor, 1.8, 0},
		{name, heldOut, heldOutColor, 1.6, 2.6},
	}
}

// add appends a point. NaN and numbers beyond all measure, which would leave the others no room, are in the table alone.
func (c curve) add(to plotter.XYs, step int, y float64) plotter.XYs {
	if !(math.Abs(y) < 1e30) || c.log && y < 1e-30 {
		return to
	}
	return append(to, plotter.XY{X: float64(step), Y: y})
}

// draw returns the plot as PNG. The library panics at ranges that it cannot draw: that is an error.
func (c curve) draw(rows []row, o Options) (image []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("plot: %v", p)
		}
	}()
	p := plot.New()
	p.Title.Text = o.Title
	p.Title.Padding = vg.Points(6)
	p.X.Label.Text, p.Y.Label.Text = "step", c.label
	p.X.Padding, p.Y.Padding = vg.Points(4), vg.Points(4)
	p.Legend.Top, p.Legend.Padding = true, vg.Points(2)
	p.Legend.XOffs, p.Legend.YOffs = vg.Points(-8), vg.Points(-8)
	for _, s := range []*draw.TextStyle{&p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.Legend.TextStyle} {
		s.Font.Size = vg.Points(11)
	}
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = color.Gray{Y: 225}, color.Gray{Y: 240}
	p.Add(grid)
	for _, l := range c.lines(rows, o) {
		if len(l.points) == 0 {
			continue
		}
		line, circles, err := plotter.NewLinePoints(l.points)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = l.color, vg.Points(l.width)
		circles.Shape, circles.Color, circles.Radius = draw.CircleGlyph{}, l.color, vg.Points(l.circle)
		p.Add(line, circles)
		if c.mean {
			p.Legend.Add(l.label, line, circles)
		}
	}
	to, err := p.WriterTo(vg.Points(640), vg.Points(400), "png")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	_, err = to.WriteTo(&b)
	return b.Bytes(), err
}

// runningMean returns the mean of the points around each one, over a fortieth of the curve on either side: as much on both
// at the beginning, where the curve is steep, and fewer after it at the end.
func runningMean(xys plotter.XYs) plotter.XYs {
	reach := len(xys) / 40
	sums := make([]float64, len(xys)+1)
	for i, p := range xys {
		sums[i+1] = sums[i] + p.Y
	}
	out := make(plotter.XYs, len(xys))
	for i, p := range xys {
		lo, hi := i-min(reach, i), min(i+min(reach, i)+1, len(xys))
		out[i] = plotter.XY{X: p.X, Y: (sums[hi] - sums[lo]) / float64(hi-lo)}
	}
	return out
}

// thin returns every k-th point, the last one included, so that at most about maxPoints are left.
func thin(xys plotter.XYs) plotter.XYs {
	k := (len(xys) + maxPoints - 1) / maxPoints
	if k <= 1 {
		return xys
	}
	var out plotter.XYs
	for i := (len(xys) - 1) % k; i < len(xys); i += k {
		out = append(out, xys[i])
	}
	return out
}
