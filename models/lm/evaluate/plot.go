package evaluate

import (
	"fmt"
	"image/color"
	"math"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/gorgonia-nsa/nsa/internal/plots"
)

// plotPerplexity returns the loss by position as PNG. A point stands at the geometric mean of its range.
func (r *Report) plotPerplexity() ([]byte, error) {
	m := r.Perplexity
	p := plots.New(fmt.Sprintf("%s on %s, windows: %d of %d tokens", filepath.Base(r.Model.Path),
		filepath.Base(r.Data.Path), m.Windows, m.Length), "tokens before", "loss, nats a token")
	plots.LogX(p)
	p.Add(plots.Grid())
	points, low, high := plotter.XYs{}, math.Inf(1), 0.0
	for _, at := range m.Positions {
		points = append(points, plotter.XY{X: math.Sqrt(float64(at.From) * float64(at.To-1)), Y: at.Loss})
		low, high = min(low, at.Loss), max(high, at.Loss)
	}
	mean := plotter.XYs{{X: points[0].X, Y: m.All.Loss}, {X: points[len(points)-1].X, Y: m.All.Loss}}
	plots.Series(p, 0, 0, "by position", points)
	line := plots.Line(mean, color.Gray{Y: 120}, 1)
	line.Dashes = []vg.Length{2, 2}
	p.Add(line)
	p.Legend.Add(fmt.Sprintf("all, %.3f", m.All.Loss), line)
	plots.Legend(p, false, true)
	room := max(0.15*(high-low), 0.01)
	plots.Limits(p, points[0].X/1.2, points[len(points)-1].X*1.2, low-room, high+room)
	return plots.PNG(plots.Width, plots.Height, []*plot.Plot{p})
}

// plotNeedles returns the share of needles that were found by length and depth as PNG.
func (r *Report) plotNeedles() ([]byte, error) {
	g := newNeedleGrid(r.Needles)
	p := plots.New(fmt.Sprintf("%s: needles found in %s", filepath.Base(r.Model.Path), filepath.Base(r.Data.Path)),
		"length, tokens", "depth, %")
	p.Add(g)
	plots.Limits(p, -0.5, float64(len(g.lengths))-0.5, -0.5, float64(len(g.depths))-0.5)
	p.Y.Scale = plot.InvertedScale{Normalizer: plot.LinearScale{}}
	p.X.Tick.Marker = ticks(len(g.lengths), func(i int) string { return fmt.Sprint(g.lengths[i]) })
	p.Y.Tick.Marker = ticks(len(g.depths), func(i int) string { return fmt.Sprintf("%.3g", 100*g.depths[i]) })
	return plots.PNG(plots.Width, plots.Height, []*plot.Plot{p})
}

// ticks returns ticks at 0 to n-1, at most about a dozen of them.
func ticks(n int, label func(i int) string) (list plot.ConstantTicks) {
	for i := 0; i < n; i += 1 + n/12 {
		list = append(list, plot.Tick{Value: float64(i), Label: label(i)})
	}
	return list
}

// needleGrid is a plot.Plotter with a cell for each length, to the right, and depth, downwards.
type needleGrid struct {
	lengths []int
	depths  []float64
	cells   []Needle
}

func newNeedleGrid(cells []Needle) needleGrid {
	g := needleGrid{cells: cells}
	for _, n := range cells {
		if !slices.Contains(g.lengths, n.Length) {
			g.lengths = append(g.lengths, n.Length)
		}
		if !slices.Contains(g.depths, n.Depth) {
			g.depths = append(g.depths, n.Depth)
		}
	}
	return g
}

// Plot implements plot.Plotter: the more needles were found, the darker a cell.
func (g needleGrid) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	label := draw.TextStyle{Font: font.From(plot.DefaultFont, 10), XAlign: draw.XCenter, YAlign: draw.YCenter,
		Handler: text.Plain{Fonts: font.DefaultCache}}
	label.Font.Variant = "Sans"
	full := plots.Color(0)
	for _, n := range g.cells {
		i, j := float64(slices.Index(g.lengths, n.Length)), float64(slices.Index(g.depths, n.Depth))
		left, right, top, bottom := x(i-0.5), x(i+0.5), y(j-0.5), y(j+0.5)
		const gap = 1
		corners := []vg.Point{{X: left + gap, Y: top - gap}, {X: right - gap, Y: top - gap},
			{X: right - gap, Y: bottom + gap}, {X: left + gap, Y: bottom + gap}}
		share := float64(n.Found) / float64(max(1, n.Asked))
		mix := func(to uint8) uint8 { return uint8(240 + share*(float64(to)-240)) }
		c.FillPolygon(color.RGBA{mix(full.R), mix(full.G), mix(full.B), 255}, corners)
		content := fmt.Sprintf("%.0f %%", 100*share)
		if label.Color = color.Black; share > 0.75 {
			label.Color = color.White
		}
		if label.Width(content) < right-left-4 && label.Height(content) < top-bottom-4 {
			c.FillText(label, vg.Point{X: x(i), Y: y(j)}, content)
		}
	}
}
