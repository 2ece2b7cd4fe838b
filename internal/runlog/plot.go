package runlog

import (
	"bytes"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// maxPoints is the number of points that a curve is thinned to.
const maxPoints = 800

// Colours of the curves: the batches' own losses pale, what is to be read strong.
var (
	batchColor   = color.RGBA{R: 170, G: 196, B: 224, A: 255}
	trainColor   = color.RGBA{R: 31, G: 97, B: 161, A: 255}
	heldOutColor = color.RGBA{R: 206, G: 77, B: 19, A: 255}
)

// plot draws the loss of every batch, its running mean, and the held-out losses as PNG.
func (l *Log) plot() ([]byte, error) {
	p := plot.New()
	p.Title.Text = l.title
	p.Title.Padding = vg.Points(6)
	p.X.Label.Text, p.Y.Label.Text = "step", "loss, nats a byte"
	p.X.Padding, p.Y.Padding = vg.Points(4), vg.Points(4)
	p.Legend.Top, p.Legend.Padding = true, vg.Points(2)
	p.Legend.XOffs, p.Legend.YOffs = vg.Points(-8), vg.Points(-8)
	for _, s := range []*draw.TextStyle{&p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.Legend.TextStyle} {
		s.Font.Size = vg.Points(11)
	}
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = color.Gray{Y: 225}, color.Gray{Y: 240}
	p.Add(grid)

	var losses, heldOut plotter.XYs
	for _, s := range l.Steps {
		losses = addFinite(losses, s.Number, s.Loss)
		if s.HeldOut != 0 {
			heldOut = addFinite(heldOut, s.Number, s.HeldOut)
		}
	}
	for _, c := range []struct {
		label  string
		points plotter.XYs
		color  color.Color
		width  float64
		circle float64 // radius; 0 for none
	}{
		{"train, each batch", thin(losses), batchColor, 0.8, 0},
		{"train, running mean", thin(runningMean(losses)), trainColor, 1.8, 0},
		{"held out", heldOut, heldOutColor, 1.6, 2.6},
	} {
		if len(c.points) == 0 {
			continue
		}
		line, circles, err := plotter.NewLinePoints(c.points)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = c.color, vg.Points(c.width)
		circles.Shape, circles.Color, circles.Radius = draw.CircleGlyph{}, c.color, vg.Points(c.circle)
		p.Add(line, circles)
		p.Legend.Add(c.label, line, circles)
	}
	to, err := p.WriterTo(vg.Points(640), vg.Points(400), "png")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	_, err = to.WriteTo(&b)
	return b.Bytes(), err
}

// addFinite appends a loss, if it can be drawn.
func addFinite(to plotter.XYs, step int, loss float64) plotter.XYs {
	if math.IsNaN(loss) || math.IsInf(loss, 0) {
		return to
	}
	return append(to, plotter.XY{X: float64(step), Y: loss})
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
