package inspect

import (
	"bytes"
	"fmt"
	"html"
	"html/template"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/plots"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// PageFile is the name of the page in the folder of Report.Save.
const PageFile = "index.html"

// Save writes the report into a folder: the page, and as PNG the selected blocks, the gates, the distances of
// attention, and the loss. It makes the folder if needed and replaces files of these names.
func (r *Report) Save(folder string) (err error) {
	defer fault.Name(&err, "inspect", "")
	var page bytes.Buffer
	if err := r.WriteHTML(&page); err != nil {
		return err
	}
	content, err := r.pictures()
	if err == nil {
		err = os.MkdirAll(folder, 0o755)
	}
	if err != nil {
		return err
	}
	content[PageFile] = page.Bytes()
	for name, data := range content {
		if err := files.Write(filepath.Join(folder, name), data); err != nil {
			return err
		}
	}
	return nil
}

// branchColor returns the colour of a branch, that of the page in light mode.
func branchColor(name string) color.RGBA {
	switch name {
	case "compressed":
		return color.RGBA{109, 74, 230, 255}
	case "window":
		return color.RGBA{23, 114, 69, 255}
	}
	return color.RGBA{21, 101, 192, 255} // selected, causal
}

// svg returns a plot as an SVG element for the page. Its colours are variables of the page's style: black text is left
// to the style.
func svg(p *plot.Plot) (template.HTML, error) {
	p.BackgroundColor = nil
	canvas := vgsvg.New(width, height)
	p.Draw(draw.Crop(draw.New(canvas), 4, -14, 4, -6))
	var b strings.Builder
	_, err := canvas.WriteTo(&b)
	_, element, _ := strings.Cut(b.String(), "<svg ") // without the XML declaration
	colors := strings.NewReplacer("#6D4AE6", "var(--compressed)", "#1565C0", "var(--selected)",
		"#177245", "var(--window)", "#787878", "var(--line)", "#AAC4E0", "var(--line)")
	const begin = `<svg class="chart" role="img" aria-label="%s" %s`
	return template.HTML(fmt.Sprintf(begin, html.EscapeString(p.Title.Text), colors.Replace(element))), err
}

// width and height are those of most plots, in points.
const width, height = 420, 210

func (r *Report) pictures() (content map[string][]byte, err error) {
	var blocks, gates, distances, losses [][]*plot.Plot
	for i, l := range r.Layers {
		distances = append(distances, []*plot.Plot{r.plotDistances(i)})
		if l.Blocks == nil {
			continue
		}
		gates = append(gates, []*plot.Plot{r.plotGates(i)})
		var row []*plot.Plot
		for g := range l.Groups {
			row = append(row, r.plotBlocks(i, g))
		}
		blocks = append(blocks, row)
	}
	if r.HasLoss() {
		losses = append(losses, []*plot.Plot{r.plotLoss()})
	}
	content = map[string][]byte{}
	for _, f := range []struct {
		name          string
		width, height float64
		rows          [][]*plot.Plot
	}{
		{"blocks", 320, 320, blocks}, {"gates", width, height, gates},
		{"distance", width, height, distances}, {"loss", 640, 320, losses},
	} {
		if err == nil && f.rows != nil {
			content[f.name+".png"], err = plots.PNG(f.width, f.height, f.rows...)
		}
	}
	return content, err
}

// plotBlocks returns a plot of the selected blocks of a group: keys to the right, queries downwards.
func (r *Report) plotBlocks(layer, group int) *plot.Plot {
	p := plots.New(fmt.Sprintf("layer %d, group %d", layer, group), "block begins at, tokens", "query")
	p.Add(selection{r, r.Layers[layer], group})
	plots.Limits(p, 0, float64(len(r.Tokens)), 0, float64(len(r.Tokens)))
	p.Y.Scale = plot.InvertedScale{Normalizer: plot.LinearScale{}}
	return p
}

// selection is the selected blocks of a group, as a plot.Plotter.
type selection struct {
	*Report
	Layer
	group int
}

func (s selection) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	for i, b := range s.Blocks {
		t := i / s.N / s.Groups
		if b < 0 || i/s.N%s.Groups != s.group {
			continue
		}
		fill := mix(color.RGBA{92, 149, 214, 255}, color.RGBA{11, 61, 128, 255}, math.Sqrt(s.Shares[i]))
		if s.Forced(t, b) {
			fill = mix(color.RGBA{139, 148, 163, 255}, color.RGBA{82, 91, 107, 255}, s.Shares[i])
		}
		from := int(b) * s.Config.SelectBlock
		left, right := x(float64(from)), x(float64(min(t+1, from+s.Config.SelectBlock)))
		top, bottom := y(float64(t)), y(float64(t+1))
		c.FillPolygon(fill, []vg.Point{{X: left, Y: top}, {X: right, Y: top}, {X: right, Y: bottom},
			{X: left, Y: bottom}})
	}
}

// mix returns the colour that lies the given share of the way from low to high.
func mix(low, high color.RGBA, share float64) color.Color {
	of := func(a, b uint8) uint8 { return uint8(float64(a) + share*(float64(b)-float64(a))) }
	return color.RGBA{of(low.R, high.R), of(low.G, high.G), of(low.B, high.B), 255}
}

// plotGates returns a plot of the mean gates of a layer, three bars a head.
func (r *Report) plotGates(layer int) *plot.Plot {
	gates := r.Layers[layer].Gates
	p := plots.New(fmt.Sprintf("layer %d", layer), "head", "mean gate")
	bar := 0.15 * width / vg.Length(max(1, len(gates)))
	for k, name := range decode.BranchNames() {
		bars := &plotter.BarChart{Width: bar, Offset: 1.1 * bar * vg.Length(k-1), Color: branchColor(name)}
		for _, g := range gates {
			bars.Values = append(bars.Values, g.Mean[k])
		}
		p.Add(bars)
		p.Legend.Add(name, bars)
	}
	plots.Limits(p, -0.5, 1.3*float64(len(gates))-0.5, 0, 1) // room for the legend
	p.X.Tick.Marker = ticks(len(gates), func(head int) int { return head })
	plots.Legend(p, true, false)
	return p
}

// ticks returns ticks at 0 to n-1.
func ticks(n int, label func(i int) int) (list plot.ConstantTicks) {
	for i := range n {
		list = append(list, plot.Tick{Value: float64(i), Label: fmt.Sprint(label(i))})
	}
	return list
}

// plotDistances returns a plot of the attention of a layer by distance, a line a branch.
func (r *Report) plotDistances(layer int) *plot.Plot {
	p := plots.New(fmt.Sprintf("layer %d", layer), "distance from, tokens", "part of the attention probability")
	for _, k := range r.Layers[layer].Distances {
		points := make(plotter.XYs, len(k.Shares))
		for j, v := range k.Shares {
			points[j] = plotter.XY{X: float64(j), Y: v}
		}
		line := plots.Line(points, branchColor(k.Branch), 1.6)
		p.Add(line)
		p.Legend.Add(fmt.Sprintf("%s, mean %.0f", k.Branch, k.Mean), line)
		p.X.Tick.Marker = ticks(len(points), bucketStart)
	}
	p.Y.Min, p.Y.Max = 0, 1.4*p.Y.Max // room for the legend
	plots.Legend(p, true, true)
	return p
}

// plotLoss returns a plot of the loss by position, with its running mean.
func (r *Report) plotLoss() *plot.Plot {
	p := plots.New(r.windows(), "position, tokens", "loss, nats a token")
	points, mean := make(plotter.XYs, len(r.MeanByPosition)-1), make(plotter.XYs, len(r.MeanByPosition)-1)
	for t, v := range runningMean(r.MeanByPosition[1:]) {
		points[t] = plotter.XY{X: float64(t + 1), Y: r.MeanByPosition[t+1]}
		mean[t] = plotter.XY{X: float64(t + 1), Y: v}
	}
	p.Add(plots.Line(points, plots.Pale(), 0.8), plots.Line(mean, branchColor("selected"), 1.8))
	p.Y.Min = 0
	return p
}

// runningMean returns, for each value, the mean of the values around it, a sixteenth of all values.
func runningMean(x []float64) []float64 {
	half := max(1, len(x)/32)
	list := make([]float64, len(x))
	for i := range x {
		near := x[max(0, i-half):min(len(x), i+half+1)]
		list[i] = floats.Sum(near) / float64(len(near))
	}
	return list
}
