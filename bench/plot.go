package main

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/plots"
)

// figure is a plot of the rows of a unit against tokens. place returns where a row is; the row's baseline is a point of the peer's line. ok
// is false for a row that is not in the plot.
type figure struct {
	file, title, unit string
	place             func(row) (p point, ok bool)
}

// point says where a row is in a plot.
type point struct {
	line   string
	peer   string // line of the baseline, "" for none
	tokens string // X
}

// allFigures are those that a CSV file may have rows for.
func allFigures() []figure {
	list := []figure{
		{"model", "Base() on the CPU, batch 1, float32", "s", againstTokens("model")},
		{"layer", "One NSA layer on the CPU, float32", "s", againstTokens("layer")},
		{"decode", "One more token: attention of a layer", "ms a token", ofDecode("i B=1 S=")},
	}
	for _, shape := range attentionShapes {
		heads := fmt.Sprintf("%d and %d heads, D %d", shape.heads, shape.kvHeads, shape.dim)
		list = append(list,
			figure{"decode_" + shape.name, "One more token of 8 sequences: attention of " + heads, "us", ofDecode(shape.name + " B=8 S=")},
			figure{"attention_" + shape.name, fmt.Sprintf("Attention of shape %s: %s, forward and backward, %v", shape.name, heads, trainPrecision),
				"ms", ofAttention(shape.name)})
	}
	return list
}

// drawFile draws the figures of a CSV file into a folder.
func drawFile(path, folder string) {
	records := readTable(path)
	for _, f := range allFigures() {
		if p := f.plot(records); p != nil {
			picture, err := plots.PNG(plots.Width, plots.Height, []*plot.Plot{p})
			check(err)
			to := filepath.Join(folder, f.file+".png")
			check(files.Write(to, picture))
			fmt.Println("wrote", to)
		}
	}
}

// plot returns the plot of a table on logarithmic axes, or nil if no row is in it.
func (f figure) plot(records [][]string) *plot.Plot {
	series, machine := map[string]plotter.XYs{}, ""
	add := func(name, tokens, value string) {
		x, err := strconv.ParseFloat(tokens, 64)
		if p := series[name]; err == nil && (len(p) == 0 || p[len(p)-1].X != x) { // a figure has a row for each baseline
			series[name] = append(p, plotter.XY{X: x, Y: must(strconv.ParseFloat(value, 64))})
		}
	}
	for _, record := range records {
		cell := func(column string) string {
			if i := slices.Index(records[0], column); i >= 0 {
				return record[i]
			}
			return ""
		}
		x := row{suite: cell("suite"), what: cell("what"), size: cell("size"), unit: cell("unit"), baseline: cell("baseline")}
		at, ok := f.place(x)
		if !ok || x.unit != f.unit {
			continue
		}
		if machine = cell("machine"); cell("simd") != "" { // a CPU
			machine += fmt.Sprintf(", %s cores, %s", cell("cores"), cell("simd"))
		}
		add(at.line, at.tokens, cell("value"))
		if at.peer != "" {
			add(at.peer, at.tokens, cell("baseline_value"))
		}
	}
	if len(series) == 0 {
		return nil
	}
	p := plots.New(fmt.Sprintf("%s (%s)", f.title, machine), "tokens S", label(f.unit))
	plots.LogX(p)
	plots.Log(&p.Y)
	plots.Legend(p, true, true)
	p.Add(plots.Grid())
	for i, name := range slices.Sorted(maps.Keys(series)) {
		points := series[name]
		slices.SortStableFunc(points, func(a, b plotter.XY) int { return cmp.Compare(a.X, b.X) })
		plots.Series(p, i, i, name, points)
	}
	p.Y.Max *= math.Pow(p.Y.Max/p.Y.Min, 0.05+0.035*float64(len(series))) // room for the legend
	return p
}

// label spells out a unit of time.
func label(unit string) string {
	return strings.NewReplacer("ms", "milliseconds", "us", "microseconds", "s", "seconds").Replace(unit)
}

// againstTokens places the rows of a suite whose sizes are "S=...". Base() also has a line of its peer.
func againstTokens(suite string) func(row) (point, bool) {
	return func(x row) (p point, ok bool) {
		p.line = x.what
		if p.tokens, ok = strings.CutPrefix(x.size, "S="); strings.HasPrefix(x.baseline, "dense PyTorch") {
			p.peer = strings.Replace(x.what, "Base()", "dense PyTorch (peer)", 1)
		}
		return p, ok && x.suite == suite
	}
}

// ofAttention places the rows of a shape: forward and backward together, and the selection of blocks, which has no backward.
func ofAttention(shape string) func(row) (point, bool) {
	return func(x row) (p point, ok bool) {
		p.peer = x.baseline
		var both bool
		p.tokens, ok = strings.CutPrefix(x.size, shape+" ")
		p.line, both = strings.CutSuffix(x.what, ", forward and backward")
		return p, ok && (both || x.what == "select blocks, forward")
	}
}

// ofDecode places the rows of branches whose sizes begin with prefix.
func ofDecode(prefix string) func(row) (point, bool) {
	return func(x row) (p point, ok bool) {
		var sized bool
		p.line, ok = strings.CutPrefix(x.what, "decode, ")
		if p.tokens, sized = strings.CutPrefix(x.size, prefix); x.baseline == densePeer {
			p.peer = x.baseline
		}
		return p, ok && sized
	}
}
