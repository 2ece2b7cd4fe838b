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

// plot draws the seconds of a suite against S, a line for each figure, on logarithmic axes. Without points it draws none.
func (r *report) plot(suite, title string) {
	series := map[string]plotter.XYs{}
	add := func(name string, s, value float64) {
		if p := series[name]; len(p) == 0 || p[len(p)-1].X != s { // a figure has a row for each baseline
			series[name] = append(p, plotter.XY{X: s, Y: value})
		}
	}
	for _, x := range r.rows {
		tokens, ok := strings.CutPrefix(x.size, "S=")
		s, err := strconv.ParseFloat(tokens, 64)
		if !ok || err != nil || x.suite != suite || x.unit != "s" {
			continue
		}
		add(x.what, s, x.value)
		if strings.HasPrefix(x.baseline, "dense PyTorch") {
			add(strings.Replace(x.what, "Base()", "dense PyTorch (peer)", 1), s, x.baseValue)
		}
	}
	if len(series) == 0 {
		return
	}
	p := plot.New()
	p.Title.Text = fmt.Sprintf("%s (%s, %s cores, %s)", title, r.of("machine"), r.of("cores"), r.of("simd"))
	p.X.Label.Text, p.Y.Label.Text = "tokens S", "seconds"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.TickerFunc(powersOfTwo), plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	var args []any
	for _, name := range slices.Sorted(maps.Keys(series)) {
		args = append(args, name, series[name])
	}
	check(plotutil.AddLinePoints(p, args...))
	path := filepath.Join(r.dir, suite+".png")
	check(p.Save(7*vg.Inch, 4.5*vg.Inch, path))
	fmt.Println("wrote", path)
}

// powersOfTwo returns a tick for each power of two in [lo, hi].
func powersOfTwo(lo, hi float64) (ticks []plot.Tick) {
	for v := 1.0; v <= hi; v *= 2 {
		if v >= lo {
			ticks = append(ticks, plot.Tick{Value: v, Label: strconv.Itoa(int(v))})
		}
	}
	return ticks
}
