// Package plots draws the plots of this module in one style, by gonum's plot library.
package plots

import (
	"bytes"
	"fmt"
	"image/color"
	"image/png"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// New returns a plot without lines. x and y are the labels of the axes.
func New(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	for style, size := range map[*draw.TextStyle]float64{
		&p.Title.TextStyle: 12, &p.X.Label.TextStyle: 10, &p.Y.Label.TextStyle: 10, &p.Legend.TextStyle: 9.5, &p.X.Tick.Label: 9, &p.Y.Tick.Label: 9,
	} {
		style.Font.Variant, style.Font.Size = "Sans", vg.Points(size)
	}
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.LineStyle.Color, axis.Tick.LineStyle.Color = color.Gray{Y: 120}, color.Gray{Y: 120}
	}
	p.Legend.Padding = vg.Points(2)
	return p
}

// Legend puts the legend into a corner, 8 points from the axes.
func Legend(p *plot.Plot, top, left bool) {
	p.Legend.Top, p.Legend.Left = top, left
	p.Legend.XOffs, p.Legend.YOffs = vg.Points(-8), vg.Points(8)
	if left {
		p.Legend.XOffs = vg.Points(8)
	}
	if top {
		p.Legend.YOffs = vg.Points(-8)
	}
}

// LogX makes the X axis logarithmic, with ticks at powers of two.
func LogX(p *plot.Plot) { p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.TickerFunc(PowersOfTwo) }

// Limits sets the ranges of the axes. Call it after Add, which widens them.
func Limits(p *plot.Plot, xMin, xMax, yMin, yMax float64) {
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = xMin, xMax, yMin, yMax
}

// Pale is the colour of single values whose mean is drawn too.
func Pale() color.Color { return color.RGBA{R: 170, G: 196, B: 224, A: 255} }

// Grid returns the lines of a grid, to be added before all others.
func Grid() *plotter.Grid {
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = color.Gray{Y: 220}, color.Gray{Y: 236}
	return grid
}

// Line returns a line of a width in points. Its points must be finite.
func Line(points plotter.XYs, c color.Color, width float64) *plotter.Line {
	return &plotter.Line{XYs: points, LineStyle: draw.LineStyle{Color: c, Width: vg.Points(width)}}
}

// PNG returns plots in rows and columns as one picture. width and height of a plot are in points. The library panics at ranges that it
// cannot draw, such as 0 on a logarithmic axis: PNG returns this as an error.
func PNG(width, height float64, rows ...[]*plot.Plot) (out []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("plot: %v", p)
		}
	}()
	canvas := vgimg.New(vg.Points(width*float64(len(rows[0]))), vg.Points(height*float64(len(rows))))
	tiles := draw.Tiles{Rows: len(rows), Cols: len(rows[0]), PadTop: 6, PadBottom: 4, PadLeft: 4, PadRight: 14, PadX: 12, PadY: 12}
	for i, row := range plot.Align(rows, tiles, draw.New(canvas)) {
		for j, tile := range row {
			rows[i][j].Draw(tile)
		}
	}
	var b bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestSpeed}).Encode(&b, canvas.Image())
	return b.Bytes(), err
}
