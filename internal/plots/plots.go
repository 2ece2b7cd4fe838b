// Package plots draws the plots of this module in one style, by gonum's plot library.
package plots

import (
	"bytes"
	"fmt"
	"image/color"
	"image/png"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// New returns a plot without lines, with linear axes. x and y are the labels of the axes.
func New(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	for style, size := range map[*draw.TextStyle]float64{
		&p.Title.TextStyle: 13, &p.X.Label.TextStyle: 11, &p.Y.Label.TextStyle: 11,
		&p.Legend.TextStyle: 10.5, &p.X.Tick.Label: 10, &p.Y.Tick.Label: 10,
	} {
		style.Font.Variant, style.Font.Size = "Sans", vg.Points(size)
	}
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.LineStyle.Color, axis.Tick.LineStyle.Color = color.Gray{Y: 120}, color.Gray{Y: 120}
		axis.Tick.Marker = Ticks{}
	}
	p.Title.Padding = vg.Points(6)
	p.Legend.Padding, p.Legend.ThumbnailWidth = vg.Points(2), vg.Points(26)
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

// Log makes an axis logarithmic.
func Log(axis *plot.Axis) { axis.Scale, axis.Tick.Marker = plot.LogScale{}, LogTicks{} }

// Limits sets the ranges of the axes. Call it after Add, which widens them.
func Limits(p *plot.Plot, xMin, xMax, yMin, yMax float64) {
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = xMin, xMax, yMin, yMax
}

// Color returns the colour of the i-th line: those of Okabe and Ito, which colour-blind readers can tell apart.
func Color(i int) color.RGBA {
	colors := []color.RGBA{{0, 114, 178, 255}, {213, 94, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255},
		{0, 0, 0, 255}, {230, 159, 0, 255},
		{86, 180, 233, 255}}
	return colors[i%len(colors)]
}

// Series adds a line with the i-th colour and mark and pattern of dashes, 0 for solid, and its name in the legend.
func Series(p *plot.Plot, i, dashes int, name string, points plotter.XYs) {
	patterns := [][]vg.Length{nil, {6, 2.5}, {2, 2}, {8, 2.5, 2, 2.5}}
	shapes := []draw.GlyphDrawer{draw.CircleGlyph{}, draw.BoxGlyph{}, draw.TriangleGlyph{}, draw.RingGlyph{},
		draw.SquareGlyph{}}
	line := Line(points, Color(i), 1.6)
	line.Dashes = patterns[dashes%len(patterns)]
	marks := &plotter.Scatter{XYs: points, GlyphStyle: draw.GlyphStyle{Color: Color(i), Radius: vg.Points(2.8),
		Shape: shapes[i%len(shapes)]}}
	p.Add(line, marks)
	p.Legend.Add(name, line, marks)
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

// The space around the plots of a picture and between them, in points.
const padTop, padBottom, padLeft, padRight, padBetween = 6, 4, 4, 14, 12

// Width and Height are those of a single figure, in points: 827 pixels, which a README shows as they are.
const Width, Height = 620, 400

// PNG returns plots in rows and columns as one picture. width and height of a plot are in points. Titles and labels
// that are too long for this are broken into lines. The library panics at ranges that it cannot draw, such as 0 on a
// logarithmic axis: PNG returns this as an error.
func PNG(width, height float64, rows ...[]*plot.Plot) (out []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("plot: %v", p)
		}
	}()
	w, h := vg.Points(width*float64(len(rows[0]))), vg.Points(height*float64(len(rows)))
	canvas := vgimg.New(w, h)
	tiles := draw.Tiles{Rows: len(rows), Cols: len(rows[0]), PadTop: padTop, PadBottom: padBottom, PadLeft: padLeft,
		PadRight: padRight,
		PadX:     padBetween, PadY: padBetween}
	for _, p := range slices.Concat(rows...) {
		across, upwards := vg.Points(width-padLeft-padRight-padBetween), vg.Points(height-padTop-padBottom-padBetween)
		p.Title.Text = wrap(p.Title.TextStyle, p.Title.Text, across)
		p.X.Label.Text = wrap(p.X.Label.TextStyle, p.X.Label.Text, across*3/4)
		p.Y.Label.Text = wrap(p.Y.Label.TextStyle, p.Y.Label.Text, upwards*3/4)
		for _, axis := range []*plot.Axis{&p.X, &p.Y} {
			if _, log := axis.Scale.(plot.LogScale); log && axis.Min == axis.Max { // the library would begin 1 below it
				axis.Min, axis.Max = axis.Min/2, axis.Max*2
			}
		}
	}
	for i, row := range plot.Align(rows, tiles, draw.New(canvas)) {
		for j, tile := range row {
			rows[i][j].Draw(tile)
		}
	}
	var b bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestSpeed}).Encode(&b, canvas.Image())
	return b.Bytes(), err
}

// wrap breaks text at blanks into lines that are no wider than width, unless a word is.
func wrap(style draw.TextStyle, text string, width vg.Length) string {
	var lines []string
	for _, word := range strings.Fields(text) {
		last := len(lines) - 1
		if last >= 0 && style.Width(lines[last]+" "+word) <= width {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return strings.Join(lines, "\n")
}
