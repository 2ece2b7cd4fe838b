package main

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/plots"
)

// figure is a plot of the rows of a unit against tokens. A row's "suite: what: size" matches rows, whose last group is
// the tokens and whose others are the name of the line. The baseline of a dense peer is a point of the peer's line.
type figure struct{ file, title, unit, rows string }

// allFigures are those that a CSV file may have rows for.
func allFigures() []figure {
	list := []figure{
		{"model", "Base() on the CPU, batch 1, float32", "s", `model: (.*): S=(\d+)`},
		{"layer", "One NSA layer on the CPU, float32", "s", `layer: (.*): S=(\d+)`},
		{"decode", "One more token: attention of a layer", "ms a token", `decode: decode, (.*): i B=1 S=(\d+)`},
	}
	for _, shape := range attentionShapes {
		heads := fmt.Sprintf("%d and %d heads, D %d", shape.heads, shape.kvHeads, shape.dim)
		list = append(list,
			figure{"decode_" + shape.name, "One more token of 8 sequences: attention of " + heads, "us",
				`decode: decode, (.*): ` + shape.name + ` B=8 S=(\d+)`},
			figure{"attention_" + shape.name,
				fmt.Sprintf("Attention of shape %s: %s, forward and backward, %v", shape.name, heads, trainPrecision),
				"ms", `attention: (?:(.*), forward and backward|(select blocks, forward)): ` + shape.name + ` (\d+)`})
	}
	return list
}

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
		x, y := must(strconv.ParseFloat(tokens, 64)), must(strconv.ParseFloat(value, 64))
		if p := series[name]; len(p) == 0 || p[len(p)-1].X != x { // a figure has a row for each baseline
			series[name] = append(p, plotter.XY{X: x, Y: y})
		}
	}
	pattern := regexp.MustCompile("^" + f.rows + "$")
	for _, record := range records {
		cell := map[string]string{} // by column
		for i, column := range records[0] {
			cell[column] = record[i]
		}
		match := pattern.FindStringSubmatch(cell["suite"] + ": " + cell["what"] + ": " + cell["size"])
		if match == nil || cell["unit"] != f.unit {
			continue
		}
		if machine = cell["machine"]; cell["simd"] != "" { // a CPU
			machine += fmt.Sprintf(", %s cores, %s", cell["cores"], cell["simd"])
		}
		tokens := match[len(match)-1]
		add(strings.Join(match[1:len(match)-1], ""), tokens, cell["value"])
		switch peer := cell["baseline"]; {
		case strings.HasPrefix(peer, "dense PyTorch"):
			add(strings.Replace(match[1], "Base()", "dense PyTorch (peer)", 1), tokens, cell["baseline_value"])
		case peer == densePeer:
			add(peer, tokens, cell["baseline_value"])
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
