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
	"gonum.org/v1/plot/vg"
)

// plots draws the suites that were measured against the sequence length.
func (r *report) plots() error {
	model := map[string]plotter.XYs{}
	for _, x := range r.rows {
		if s, ok := length(x.size); ok && x.suite == "model" {
			model[x.what] = appendOnce(model[x.what], s, x.value)
			if strings.HasPrefix(x.baseline, "dense PyTorch") && x.baseValue > 0 {
				name := strings.Replace(x.what, "Base()", "dense PyTorch (peer)", 1)
				model[name] = appendOnce(model[name], s, x.baseValue)
			}
		}
	}
	if err := r.plot("model.png", "Base() on the CPU, batch 1, float32", "seconds", model); err != nil {
		return err
	}
	layer := map[string]plotter.XYs{}
	for _, x := range r.rows {
		if s, ok := length(x.size); ok && x.suite == "layer" && x.unit == "s" {
			layer[x.what] = appendOnce(layer[x.what], s, x.value)
		}
	}
	return r.plot("layer.png", "One NSA layer on the CPU, float32", "seconds", layer)
}

// appendOnce appends a point unless the last one is at the same x.
func appendOnce(p plotter.XYs, x, y float64) plotter.XYs {
	if len(p) > 0 && p[len(p)-1].X == x {
		return p
	}
	return append(p, plotter.XY{X: x, Y: y})
}

// length parses "S=2048".
func length(size string) (float64, bool) {
	s, ok := strings.CutPrefix(size, "S=")
	if !ok {
		return 0, false
	}
	v, err := strconv.ParseFloat(s, 64)
	return v, err == nil
}

// plot writes one figure with a line for each series, on logarithmic axes. Without points it writes none.
func (r *report) plot(file, title, unit string, series map[string]plotter.XYs) error {
	if len(series) == 0 {
		return nil
	}
	p := plot.New()
	p.Title.Text = fmt.Sprintf("%s (%s, %s cores, %s)", title, r.of("machine"), r.of("cores"), r.of("simd"))
	p.X.Label.Text, p.Y.Label.Text = "tokens S", unit
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = powers{}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	var args []any
	for _, name := range slices.Sorted(maps.Keys(series)) {
		args = append(args, name, series[name])
	}
	if err := plotutil.AddLinePoints(p, args...); err != nil {
		return err
	}
	path := filepath.Join(r.dir, file)
	if err := p.Save(7*vg.Inch, 4.5*vg.Inch, path); err != nil {
		return err
	}
	fmt.Println("wrote", path)
	return nil
}

// powers puts a tick at each power of two.
type powers struct{}

// Ticks implements plot.Ticker.
func (powers) Ticks(lo, hi float64) []plot.Tick {
	var ticks []plot.Tick
	for v := 1.0; v <= hi; v *= 2 {
		if v >= lo {
			ticks = append(ticks, plot.Tick{Value: v, Label: strconv.Itoa(int(v))})
		}
	}
	return ticks
}
