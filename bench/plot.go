package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"

	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/plots"
)

// plotAll plots the suites that were measured against the sequence length.
func (r *report) plotAll() {
	r.plot("model", "Base() on the CPU, batch 1, float32", "s", againstTokens("model"))
	r.plot("layer", "One NSA layer on the CPU, float32", "s", againstTokens("layer"))
	r.plot("decode", "One more token: attention of a layer", "ms a token", ofDecode("i B=1 S="))
	for _, shape := range attentionShapes {
		heads := fmt.Sprintf("%d and %d heads, D %d", shape.heads, shape.kvHeads, shape.dim)
		r.plot("decode_"+shape.name, fmt.Sprintf("One more token of 8 sequences: attention of %s", heads), "us", ofDecode(shape.name+" B=8 S="))
		title := fmt.Sprintf("Attention of shape %s: %s, forward and backward, %v", shape.name, heads, trainPrecision)
		r.plot("attention_"+shape.name, title, "ms", ofAttention(shape.name))
	}
}

// point says where a row is in a plot.
type point struct {
	line   string
	peer   string // line of the baseline, "" for none
	tokens string // X
}

// plot draws the figures of a unit against tokens, on logarithmic axes. place returns where a row is; the row's baseline is a point of the
// peer's line. ok is false for a row that is not in the plot. Without points there is no plot.
func (r *report) plot(file, title, unit string, place func(row) (p point, ok bool)) {
	series := map[string]plotter.XYs{}
	add := func(name string, s, value float64) {
		if p := series[name]; len(p) == 0 || p[len(p)-1].X != s { // a figure has a row for each baseline
			series[name] = append(p, plotter.XY{X: s, Y: value})
		}
	}
	for _, x := range r.rows {
		at, ok := place(x)
		if !ok || x.unit != unit {
			continue
		}
		s, err := strconv.ParseFloat(at.tokens, 64)
		if err != nil {
			continue
		}
		add(at.line, s, x.value)
		if at.peer != "" {
			add(at.peer, s, x.baseValue)
		}
	}
	if len(series) == 0 {
		return
	}
	machine := r.column("machine")
	if r.backend.Device().Host {
		machine += fmt.Sprintf(", %s cores, %s", r.column("cores"), r.column("simd"))
	}
	p := plots.New(fmt.Sprintf("%s (%s)", title, machine), "tokens S", unit)
	plots.LogX(p)
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plots.LogTicks{}
	plots.Legend(p, true, true)
	p.Add(plots.Grid())
	var args []any
	for _, name := range slices.Sorted(maps.Keys(series)) {
		args = append(args, name, series[name])
	}
	check(plotutil.AddLinePoints(p, args...))
	picture, err := plots.PNG(560, 360, []*plot.Plot{p})
	check(err)
	path := filepath.Join(r.dir, file+".png")
	check(files.Write(path, picture))
	fmt.Println("wrote", path)
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
