package runlog

import (
	"image/color"
	"math"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/gorgonia-nsa/nsa/internal/plots"
)

// curve is a plot over the steps.
type curve struct {
	file    string
	label   string // of the Y axis
	value   func(s *Step) float64
	mean    bool // each step is drawn pale, with the running mean
	heldOut bool // the held-out losses are drawn too
	log     bool // the Y axis is logarithmic
	zero    bool // the Y axis begins at 0
}

func curves() []curve {
	return []curve{
		{file: "loss.png", label: "loss, nats a token", value: func(s *Step) float64 { return s.Loss }, mean: true,
			heldOut: true},
		{file: "lr.png", label: "learning rate", value: func(s *Step) float64 { return s.LR }, zero: true},
		{file: "grad_norm.png", label: "global norm of the gradients", value: func(s *Step) float64 { return s.GradNorm },
			mean: true, log: true},
		{file: "rate.png", label: "tokens per second", value: func(s *Step) float64 { return s.TokensPerSec }, mean: true,
			zero: true},
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

// lines returns the lines of the plot of c, and the range of its Y axis.
func (c curve) lines(rows []row, o Options) (lines []line, low, high float64) {
	var steps, heldOut plotter.XYs
	for i := range rows {
		r := &rows[i]
		if !r.onlyHeldOut {
			steps = c.add(steps, r.Number, c.value(&r.Step))
		}
		if c.heldOut && r.heldOut != 0 {
			heldOut = c.add(heldOut, r.Number, r.heldOut)
		}
	}
	if !c.mean {
		low, high = c.height(nil, steps)
		return []line{{c.label, thin(steps), plots.Color(0), 1.8, 0}}, low, high
	}
	mean := line{"running mean", thin(runningMean(steps, c.log)), plots.Color(0), 1.8, 0}
	if c.log {
		mean.label = "running geometric mean"
	}
	lines = []line{{"each step", thin(steps), plots.Pale(), 0.8, 0}, mean}
	if n := len(heldOut); n > 0 {
		last := heldOut[n-1].Y
		label := "held out, at last " + strconv.FormatFloat(last, 'f', 3, 64)
		if b := o.BytesPerToken; b > 0 {
			label += " (" + strconv.FormatFloat(bitsPerByte(last, b), 'f', 3, 64) + " bits a byte)"
		}
		held := line{label, thin(heldOut), plots.Color(1), 1.6, 0}
		if n <= 60 { // more circles would run together
			held.circle = 2.6
		}
		lines = append(lines, held)
	}
	low, high = c.height(steps, mean.points, heldOut)
	return lines, low, high
}

// add appends a point. It leaves out NaN and huge numbers, which would leave no room for the others: only the table has
// them.
func (c curve) add(to plotter.XYs, step int, y float64) plotter.XYs {
	if !(math.Abs(y) < 1e30) || c.log && y < 1e-30 {
		return to
	}
	return append(to, plotter.XY{X: float64(step), Y: y})
}

func (c curve) draw(rows []row, o Options) ([]byte, error) {
	if c.heldOut && o.RelativeError {
		c.label = "relative error"
	}
	p := plots.New(o.Title, "step", c.label)
	p.X.Padding, p.Y.Padding = 0, 0
	plots.Legend(p, !c.zero, false) // lines of an axis from 0 leave room at the bottom
	p.X.Tick.Marker = plots.Ticks{Whole: true}
	if c.log {
		plots.Log(&p.Y)
	}
	p.Add(plots.Grid())
	lines, low, high := c.lines(rows, o)
	for _, l := range lines {
		if len(l.points) == 0 {
			continue
		}
		var marks []plot.Thumbnailer
		for _, points := range pieces(l.points) {
			line := plots.Line(points, l.color, l.width)
			p.Add(line)
			marks = []plot.Thumbnailer{line}
		}
		if l.circle > 0 || len(l.points) == 1 {
			circles, err := plotter.NewScatter(l.points)
			if err != nil {
				return nil, err
			}
			circles.Shape, circles.Color, circles.Radius = draw.CircleGlyph{}, l.color, vg.Points(max(l.circle, 2))
			p.Add(circles)
			marks = append(marks, circles)
		}
		if c.mean {
			p.Legend.Add(l.label, marks...)
		}
	}
	last := max(1, rows[len(rows)-1].Number)
	plots.Limits(p, 0, float64(last), low, high) // lines are cut off at their ends
	return plots.PNG(plots.Width, plots.Height, []*plot.Plot{p})
}

// maxPoints is the number of points that a line is thinned to.
const maxPoints = 800

// thin returns the lowest and the highest of every k points and the last point, so that roughly maxPoints are left at
// most and no outlier is lost.
func thin(xys plotter.XYs) plotter.XYs {
	if len(xys) <= maxPoints {
		return xys
	}
	var out plotter.XYs
	for part := range slices.Chunk(xys, (2*len(xys)+maxPoints-1)/maxPoints) {
		low, high := 0, 0
		for i, p := range part {
			if p.Y < part[low].Y {
				low = i
			}
			if p.Y > part[high].Y {
				high = i
			}
		}
		out = append(out, part[min(low, high)], part[max(low, high)])
	}
	return append(out, xys[len(xys)-1])
}

// pieces cuts a line into short ones, because the time to draw a line grows with the square of its length. Each piece
// begins with the last segment of the one before.
func pieces(xys plotter.XYs) []plotter.XYs {
	const length = 32
	var out []plotter.XYs
	for i := 0; i == 0 || i+2 < len(xys); i += length - 2 {
		out = append(out, xys[i:min(i+length, len(xys))])
	}
	return out
}

// runningMean returns the mean of the points around each one, over a fortieth of the curve on either side; if
// geometric, the geometric mean. At the beginning, where the curve is steep, both sides are equally short. At the end
// only the side after the point is shorter.
func runningMean(xys plotter.XYs, geometric bool) plotter.XYs {
	reach := len(xys) / 40
	sums := make([]float64, len(xys)+1)
	for i, p := range xys {
		if geometric {
			p.Y = math.Log(p.Y)
		}
		sums[i+1] = sums[i] + p.Y
	}
	out := make(plotter.XYs, len(xys))
	for i, p := range xys {
		lo, hi := i-min(reach, i), min(i+min(reach, i)+1, len(xys))
		out[i] = plotter.XY{X: p.X, Y: (sums[hi] - sums[lo]) / float64(hi-lo)}
		if geometric {
			out[i].Y = math.Exp(out[i].Y)
		}
	}
	return out
}

// height returns the range of the Y axis for all that is drawn. It leaves out the highest and the lowest hundredth of
// the single steps: an outlier would flatten the other points, so it is cut off at the border instead.
func (c curve) height(steps plotter.XYs, others ...plotter.XYs) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, p := range slices.Concat(others...) {
		low, high = min(low, p.Y), max(high, p.Y)
	}
	ys := make([]float64, len(steps))
	for i, p := range steps {
		ys[i] = p.Y
	}
	slices.Sort(ys)
	if n := len(ys); n > 0 {
		low, high = min(low, ys[n/100]), max(high, ys[n-1-n/100])
	}
	switch {
	case !(low <= high): // nothing to be drawn
		return 1, 2
	case c.log:
		return low / 1.2, high * 1.2
	case c.zero:
		low, high = min(low, 0), max(high, 0)
	}
	room := max(0.04*(high-low), 1e-3*max(math.Abs(low), math.Abs(high), 1e-30))
	if c.zero && low == 0 {
		return 0, high + room
	}
	return low - room, high + room
}
